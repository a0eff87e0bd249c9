// How texts and numbers are shown. What commands a terminal or turns the direction of writing is shown by its name instead.
import { h } from "./dom.js";

const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}\p{Cs}]/gu;

function nameOf(character) {
	return "U+" + character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
}

// Nodes of a text, its control characters as small labels.
export function shown(text) {
	const found = [];
	const clean = String(text ?? "").replace(/\r\n/g, "\n");
	let last = 0;
	for (const match of clean.matchAll(CONTROL)) {
		if (match.index > last) found.push(clean.slice(last, match.index));
		found.push(h("span.control", nameOf(match[0])));
		last = match.index + match[0].length;
	}
	found.push(clean.slice(last));
	return found;
}

// The same as a plain string, for titles.
export function harmless(text) {
	return String(text ?? "").replace(CONTROL, (c) => "<" + nameOf(c) + ">");
}

export function number(value, digits = 3) {
	if (value === null || value === undefined) return "–";
	if (Number.isInteger(value)) return value.toLocaleString("en");
	const size = Math.abs(value);
	if (size >= 1000) return Math.round(value).toLocaleString("en");
	if (size !== 0 && size < 0.001) return value.toExponential(1);
	return String(Number(value.toPrecision(digits)));
}

export function compact(value) {
	if (value === null || value === undefined) return "–";
	const size = Math.abs(value);
	if (size >= 1e9) return number(value / 1e9) + "G";
	if (size >= 1e6) return number(value / 1e6) + "M";
	if (size >= 1e4) return number(value / 1e3) + "k";
	return number(value);
}

export function percent(value, digits = 0) {
	return value === null || value === undefined ? "–" : (100 * value).toFixed(digits) + " %";
}

export function signed(value, digits = 3) {
	return value === null || value === undefined ? "–" : (value > 0 ? "+" : value < 0 ? "−" : "") + number(Math.abs(value), digits);
}

export function plural(count, one, many) {
	return number(count) + " " + (count === 1 ? one : many || one + "s");
}
