// The page of a run, or of several laid over each other.
import { card, facts, h, table } from "./dom.js";
import { ask } from "./data.js";
import { chartCard } from "./charts.js";
import { heatCard } from "./heat.js";
import { compact, harmless, number, shown } from "./text.js";

export async function runPage(state) {
  const chosen = state.overlay ? state.runs.map((_, i) => i) : [state.run];
  const found = await Promise.all(chosen.map((i) => ask(i + "/overview")));
  const page = h("div", { class: "page stack" });
  page.append(heading(found, state), ...found.flatMap((run) => run.missing.map((why) => h("p", { class: "note" }, shown(found.length > 1 ? run.name + ": " + why : why)))));
  const first = found.find((run) => run.counts);
  if (first) page.append(found.length > 1 ? sideBySide(found) : figures(first.counts));
  for (const run of found) if (run.heat) page.append(heatCard(run.heat, found.length > 1 ? "Questions by accuracy: " + run.name : null));
  const charts = found[0].charts.map((_, i) => found.map((run) => run.charts[i]));
  page.append(h("div", { class: "grid" }, charts.filter((same) => !same.every((one) => one.hidden)).map((same) => chartCard(same, found, state.axis))));
  for (const run of found) if (run.marks) page.append(marks(run, found.length > 1));
  for (const run of found) if (run.options) page.append(options(run, found.length > 1));
  return page;
}

function heading(found, state) {
  const says = found.length > 1 ? found.map((run, i) => [i ? " and " : "", h("span", { class: "k" + (i % 6 + 1) }, shown(run.name))]) : shown(found[0].name);
  const axis = h("div", { class: "chips", role: "group", "aria-label": "horizontal axis" }, [["steps", "over steps"], ["tokens", "over tokens"]].map(([name, text]) =>
    h("button", { type: "button", "aria-pressed": String(state.axis === name), title: name === "tokens" ? "completion tokens generated so far: the fair axis where two runs are compared" : "optimizer steps", onclick: () => state.setAxis(name) }, text)));
  return h("div", { class: "row middle" }, h("h1", null, says), h("span", { class: "muted small" }, found.length === 1 ? shown(found[0].path) : null), h("div", { class: "push" }, axis));
}

const COUNTS = [
  ["step", "optimizer steps", "optimizer steps done"], ["tokens", "generated tokens", "completion tokens sampled since the start"],
  ["questions", "questions seen", "questions with at least one fresh group"], ["retired", "retired", "questions that have left replay and the fresh stream"],
  ["stored", "stored", "trajectories that are stored now"], ["ever", "ever stored", "trajectories that were ever stored"],
  ["replays", "replays", "times that a stored trajectory entered a batch"],
];

function figures(counts) {
  return h("section", { class: "card figures" }, COUNTS.map(([name, text, title]) =>
    h("div", { title: title + ": " + number(counts[name]) }, h("b", null, compact(counts[name])), h("span", null, text))));
}

function sideBySide(found) {
  const columns = [{ head: "", cell: (row) => h("span", { title: row[2] }, row[1]) }, ...found.map((run, i) => ({
    head: h("span", { class: "k" + (i % 6 + 1) }, shown(run.name)), num: true, cell: (row) => (run.counts ? number(run.counts[row[0]]) : "–"),
  }))];
  return h("section", { class: "card scroll" }, table(columns, [...COUNTS, ...RATES]));

}

const RATES = [];

// Alarms and reasons of idle replay, in the order of time.
function marks(run, several) {
  const box = card(several ? "Alarms and idle replay: " + run.name : "Alarms and idle replay", null);
  const rows = [...run.marks].sort((a, b) => a.step - b.step);
  if (!rows.length) {
    box.append(h("p", { class: "empty" }, run.counts && run.counts.generations ? "No alarm was raised, and every generation replayed something." : "No generation was planned in what is shown here."));
    return box;
  }
  const columns = [
    { head: "step", num: true, cell: (m) => number(m.step) + (m.to > m.step ? "–" + number(m.to) : "") },
    { head: "what", cell: (m) => h("span", { class: m.kind === "alarm" ? "tag warn" : "tag" }, m.kind === "alarm" ? "alarm: " + m.reason : "idle") },
    { head: "why", cell: (m) => [shown(m.text), m.first && m.first !== m.text ? h("div", { class: "faint small" }, "at first: ", shown(m.first)) : null] },
    { head: "generations", num: true, class: "wide", cell: (m) => (m.count ? number(m.count) : "") },
  ];
  box.append(h("div", { class: "marks" }, table(columns, rows)));
  return box;
}

function options(run, several) {
  const { options: found, facts: pairs } = run;
  const box = card(several ? "Options: " + run.name : "Options", null);
  box.firstChild.append(h("span", { class: "muted" }, found.preset ? ["preset ", h("b", null, shown(found.preset))] : "no preset was written down"));
  if (found.summary) box.append(h("p", { class: "muted" }, found.summary));
  box.append(facts(pairs.map(([name, value]) => [name, shown(value)])), h("p", null));
  const place = h("div");
  const choice = h("div", { class: "chips" });
  const sorts = [
    ["own", "over the preset", found.rows.filter((o) => o.own), "Nothing was set over the preset."],
    ["differs", "differ from the defaults", found.rows.filter((o) => o.differs), "All options have their defaults."],
    ["all", "all", found.rows, "The run wrote no options down."],
    ...(found.others.length ? [["others", "of the host", found.others, ""]] : []),
  ];
  const show = ([name, , rows, empty]) => {
    for (const button of choice.children) button.setAttribute("aria-pressed", String(button.dataset.name === name));
    const columns = [
      { head: "option", cell: (o) => h("code", { title: harmless(o.meaning || "") }, shown(o.name)) },
      { head: "value", cell: (o) => h("code", null, shown(o.value)) },
      ...(name === "others" ? [] : [
        { head: "preset", class: "wide", cell: (o) => h("code", { class: "muted" }, shown(o.preset)) },
        { head: "default", cell: (o) => h("code", { class: "muted" }, shown(o.default)) }]),
    ];
    place.replaceChildren(rows.length ? h("div", { class: "scroll" }, table(columns, rows)) : h("p", { class: "empty" }, empty));
  };
  for (const sort of sorts) choice.append(h("button", { type: "button", "data-name": sort[0], onclick: () => show(sort) }, sort[1] + " (" + sort[2].length + ")"));
  show(sorts[0][2].length ? sorts[0] : sorts[1]);
  box.append(choice, place);
  return box;
}
