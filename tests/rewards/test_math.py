"""`math_reward`: pairs that fool symbolic checkers, one final answer, limits, both formats."""

import asyncio
import json
import logging
import subprocess
import sys
import time

import pytest

from exgrpo.errors import ConfigurationError, MissingExtraError
from exgrpo.rewards import completion, pool
from exgrpo.rewards.math import reward as math_module
from exgrpo.rewards.math.answer import final_answers, sentence_end
from exgrpo.rewards.math.form import read
from exgrpo.rewards.math.reward import (
    async_math_reward,
    math_reward,
    parse_gold,
    strict_math_reward,
    verify_answers,
    verify_math,
)
from exgrpo.rewards.math.symbolic import parse, prepare, rounds_to, symbolic_equal
from exgrpo.rewards.math.units import known_unit

pytest.importorskip("math_verify")

# Pairs of gold and answer, checked by hand --------------------------------------------------------------------------

RIGHT = [  # also in strict mode
    (r"(5\text{ m}, 3)", "(5, 3)"),
    (r"\frac23", "2(1/3)"), ("0.26x", "2(0.13)x"), (r"0.\overline{3}", r"\frac13"),
    (r"\frac{37}{30}", r"1.2\overline{3}"), ("x = 2x+3", "x=2x+3"),
    (r"2\sqrt{3}", r"2\sqrt{3}"), (r"2\sqrt{3}", r"\sqrt{12}"), (r"2\sqrt{3}", r"2\sqrt3"),
    (r"2\sqrt{3}", r"\sqrt{3}\cdot 2"), ("3^{10}", "59049"), ("3^{10}", "3^{10}"), ("3^{10}", "9^5"),
    (r"\sqrt2", r"\sqrt{2}"), (r"\sqrt2", r"\frac{2}{\sqrt{2}}"), ("(1,2)", "(1, 2)"), ("(1,2)", r"\left(1,2\right)"),
    (r"\pi/2", r"\frac{\pi}{2}"), (r"\pi/2", r"\frac12\pi"), (r"\pi/2", r"0.5\pi"),
    (r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}"), (r"\frac12", "0.5"), (r"\frac12", "1/2"),
    (r"\frac12", r"\dfrac{1}{2}"), (r"\frac12", r"\frac{2}{4}"), ("0.5", ".5"), ("5", "5.0"), ("025", "25"),
    ("142.0", "142"), ("1,234", "1234"), (r"10,\!080", "10080"), (r"11,\! 111,\! 111,\! 100", "11{,}111{,}111{,}100"),
    (r"\$32,\!348", r"\$32{,}348"), (r"\$18.90", "18.9"), (r"\$18.90", "$18.90$"), (r"1\frac{4}{5}", r"\frac{9}{5}"),
    (r"137 \frac{1}{2}", "137.5"), ("3 1/2", r"\frac{7}{2}"), (r"-1\frac12", "-1.5"),
    (r"90^\circ", r"90^{\circ}"), (r"90^\circ", "90°"), (r"90^\circ", r"90\text{ degrees}"),
    (r"15\mbox{ cm}^2", r"15\text{ cm}^2"),
    (r"15\mbox{ cm}^2", "15"), (r"15\mbox{ cm}^2", r"15\ \mathrm{cm}^{2}"), (r"5.4 \text{ cents}", "5.4"),
    (r"864 \mbox{ inches}^2", r"864\text{ square inches}"), (r"12\sqrt{13}\text{ feet}", r"12\sqrt{13}"),
    (r"7\text{ hours}.", r"7\text{ hr}"), ("62.5%", r"62.5\%"),
    (r"\text{even}", "even"), (r"\text{even}", r"\textbf{Even}"), (r"\text{Tuesday}", "Tuesday"),
    (r"\text{Tuesday}", r"\mathrm{Tuesday}"), (r"\text{two lines}", "two lines"), (r"\text{(B)}", "B"),
    (r"\text{(B)}", "(B)"), (r"\text{(B)}", r"\textbf{(B)}"), ("C", "C"), ("C", "(C)"), ("C", r"\text{C}"),
    ("C", "C) Mars"), (r"\text{October 30}", "October 30"), ("101_2", "101_{2}"), ("4210_{5}", "4210_5"),
    ("204_5", r"204_{\text{five}}"), ("[0,1)", "[0, 1)"), (r"(-\infty, 0]", r"(-\infty,0]"),
    (r"(2,\infty)", r"(2,+\infty)"), (r"(2,\infty)", "x > 2"), (r"x \in [-2,7]", "[-2,7]"),
    (r"x \in [-2,7]", r"-2 \le x \le 7"), (r"[2,\infty)", r"x\geq 2"), ("x>3", "3<x"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(3,\infty)\cup(-\infty,2)"),
    (r"(0,9) \cup (9,36)", r"\left(0,9\right)\cup\left(9,36\right)"),
    (r"(-\infty, 0) \cup\{1\}", r"\{1\}\cup(-\infty,0)"), (r"\{1,2\}", r"\{2,1\}"), (r"\{1,2\}", "1,2"),
    ("3, 5, 7", "7,3,5"), ("3, 5, 7", "3, 5 and 7"), ("1,-2", r"-2\text{ or }1"), (r"-2 \text{ or } -12", "-12, -2"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}"), (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}"),
    (r"\{1\pm\sqrt{5},-2\}", r"\{-2,1-\sqrt5,1+\sqrt5\}"), (r"\pm 3", "3,-3"), ("y = 2x+1", "y=2x+1"),
    ("y = 2x+1", "2x+1"), ("y = 2x+1", "y = 1+2x"), ("y = 2x+1", "2x - y + 1 = 0"), ("x=5", "5"), ("5", "x = 5"),
    ("5", "n=5"), ("5x - 7y + 11z + 4 = 0", "-5x+7y-11z-4=0"), ("5x - 7y + 11z + 4 = 0", "5x-7y+11z=-4"),
    ("f(x)=2 x", "f(x)=2x"), ("f(x)=2 x", "2x"), ("f(x)=x,f(x)=-x", "f(x)=-x, f(x)=x"), ("AB=9, CD=4", "CD=4, AB=9"),
    (r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}", r"\begin{bmatrix}-1&0\\0&-1\end{bmatrix}"),
    (r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", r"\begin{pmatrix} \frac{1}{5} \\ -\frac{18}{5} \end{pmatrix}"),
    (r"\begin{pmatrix} 1/2 & 1\end{pmatrix}", r"\begin{pmatrix}0.5&1\end{pmatrix}"), ("(a+5)(b+2)", "(b+2)(a+5)"),
    ("(a+5)(b+2)", "ab+2a+5b+10"), ("6r^2-4r-24", "2(3r^2-2r-12)"), ("-13x+3", "3-13x"), ("p - q", "-q+p"),
    (r"\frac{11+9a}{20}", r"\frac{9a+11}{20}"), ("1+2i", "2i+1"), ("6+9i", "3(2+3i)"),
    (r"1+\sqrt{3} i", r"2e^{i\pi/3}"), ("4.5e33", r"4.5\times 10^{33}"), ("4.5e33", r"4.5 \cdot 10^{33}"),
    ("1e-8", "10^{-8}"), ("-1./3", r"-\frac13"), (r"\frac{1}{\sqrt{2}}c", r"\frac{\sqrt{2}}{2}c"),
    (r"\cot x", r"\frac{\cos x}{\sin x}"), (r"\sin^2 t", r"1-\cos^2 t"), (r"\tan 15^\circ", r"2-\sqrt{3}"),
    (r"\tan 15^\circ", r"\tan 15^\circ"), (r"\binom{2n}{n}", r"\binom{2n}{n}"), ("2^{2008} -2", "2(2^{2007}-1)"),
    (r"\frac{100!}{2^{50}}", r"100! \cdot 2^{-50}"), ("3:5", "3 : 5"), ("3:45", "3:45"),
    (r"8\!:\!34 \text{ p.m.}", "8:34 p.m."), (r"8\!:\!34 \text{ p.m.}", "8:34 PM"),
    (r"\frac{n(n+1)}{2}", r"\frac{n^2+n}{2}"),
    (r"\frac{1}{4} n(n+1)", r"\frac{n(n+1)}{4}"), (r"$\frac{1}{2 n+2}$", r"\frac{1}{2(n+1)}"),
    (r"$\sqrt{2}-1$,$\frac{3-\sqrt{2}}{7}$", r"\frac{3-\sqrt2}{7}, \sqrt2-1"), (r"\infty", "infinity"),
    (r"\emptyset", r"\varnothing"), (r"\ln 2 + i\pi / 3", r"\frac{i\pi}{3}+\ln 2"), ("e^{t} / 3", r"\frac{e^t}{3}"),
    (r"\log_2 8", "3"), (r"\frac{\log 2}{\log 2-\log 3}", r"\frac{\ln 2}{\ln 2-\ln 3}"),
    ("(-4, 27);(2, 15)", "(2,15),(-4,27)"), ("(2,251,252)", "(2, 251, 252)"), ("12^{1/7}", r"\sqrt[7]{12}"),
    ("|x-2|", r"\left|x-2\right|"), (r"\mathbb{R}", r"(-\infty,\infty)"), ("2k+2", "2(k+1)"), ("A", "A"),
    ("-i", "-i"), (r"\lfloor\frac{2 n-1}{5}\rfloor", r"\left\lfloor \frac{2n-1}{5}\right\rfloor"),
    (r"16\text{ daps}", "16"), ("5", r"5\text{ cm}"),
    ("15", r"15\text{ square units}"), ("5", r"\$5"), ("30", r"30\text{ miles per hour}"), ("3", r"3\text{ hours}"),
    ("5", r"5\text{ m}"), ("5", r"5\text{ m/s}^2"), (r"30\text{ mph}", r"30\text{ miles per hour}"),
    ("5", "5 red apples"), ("C", r"\mathrm{(C)}\ 5"), (r"5\text{ m/s}", r"5\text{ m s}^{-1}"),

    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\mathbf{v}=\begin{pmatrix}1\\2\end{pmatrix}"), ("x=1,y=2", "1,2"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\[4pt]2\end{pmatrix}"),
    (r"\begin{pmatrix}1&-1\\1&\phantom -1\end{pmatrix}", r"\begin{pmatrix}1&-1\\1&1\end{pmatrix}"),
    ("CD", "CD"), (r"(6,235^\circ)", r"(6, 235^{\circ})"),
    ("np.arcsin(10/13)", r"\arcsin\frac{10}{13}"), (r"\frac{9}{\pi^2}(\sqrt{3}+3)", r"\frac{27+9\sqrt3}{\pi^2}"),
]  # fmt: skip

LENIENT = [  # right, but not in strict mode
    ("62.5%", "0.625"), ("62.5%", r"\frac58"), ("0.25", r"25\%"), (r"\frac13", "0.3333333"),
    (r"\sqrt{2}", "1.41421356"), (r"\frac{\pi}{4}", "0.785398"), ("101_2", "101"), ("5", "2+3=5"),
    (r"90^\circ, 60^\circ", "60, 90"), (r"90^\circ", "90"), ("90", r"90^\circ"),
    (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}"),
    (r"22.5^\circ", "22.5"), (r"8\%", "8"), ("25", r"25\%"), ("2", "3-1"), (r"(6,235^\circ)", "(6, 235)"),
    (r"\frac{10}{4}", r"x=\frac{10}{4}=2.5"), ("(1,2)", "x=1, y=2"),
    ("(1,2)", "y=2, x=1"), ("x=1,y=2", "(1,2)"), (r"10p^3 \sqrt{3p}", r"10\sqrt{3p^7}"),
]  # fmt: skip

COLUMN = r"\begin{pmatrix}1\\2\end{pmatrix}"
# Forms that say nothing, each with what is right in that form and the nearest that is wrong
FORMS = {
    "a comma that groups": (
        [
            (r"20000\pi", r"20{,}000\pi"), (r"20000\pi", r"20,000\pi"), (r"\frac{20000}{\pi}", r"\frac{20{,}000}{\pi}"),
            (r"\frac{1000}{x}", r"\frac{1,000}{x}"), (r"1000\sqrt{2}", r"1{,}000\sqrt2"), ("5000+x", "5{,}000+x"),
            ("5000+x", "5,000+x"),
            ("1000+5i", "1{,}000+5i"), ("2500,7500", r"2{,}500\text{ and }7{,}500"), ("2500,7500", "2,500 and 7,500"),
            ("(1000,2000)", r"(1{,}000,\ 2{,}000)"), ("[1000,2000]", "[1{,}000, 2{,}000]"),
            (r"\{1000,2000\}", r"\{1{,}000,2{,}000\}"),
            ("x>1000", "x>1{,}000"), ("x>1250", "x>1,250"), ("10000:1", "10{,}000:1"), ("1234567", r"1\,234\,567"),
            ("1234.5", "1{,}234.5"), ("1000x", "1,000x"),
        ],
        [
            ("(5,120)", "(5{,}120)"), ("(5,120)", r"(5\,120)"), ("(4,112)", "(4{,}112)"), ("2,345,1", "2{,}345,1"),
            ("(2,251,252)", "(2{,}251{,}252)"), ("[1,234]", "[1{,}234]"), (r"\{1,234\}", r"\{1{,}234\}"),
            ("(1,200x)", "(1200x)"),
            ("1,2", "1{,}2"), ("12", "1{,}2"), (r"20000\pi", r"20,00\pi"), ("1000x", "1,0000x"), ("x_{1,200}", "x_{1200}"),
            ("(3,1250)", "(3,1,250)"), (r"\{1000\}", r"\{1,000\}"), (r"1250\pi", r"1,250+\pi"), ("1,200", r"1,\ 200"),
            ("1000", "10{,}00"),
        ],
    ),
    "numbers joined": (
        [
            ("3-1", "3–1"), ("3-1", r"\text{3-1}"), ("3-1", "3 - 1"), ("2x4", r"2\times4"), ("2x4", "2 × 4"),
            ("6-4, 6-3", "6-3,6-4"),
            ("2024-01-05", "2024–01–05"), (r"10-20\text{ km}", "10-20 km"),
        ],
        [
            ("2024-01-05", "2024-05-01"), ("2024-01-05", "2018"), ("2018", "2024-01-05"), ("3-1", "2-0"), ("3-1", "2"),
            ("3-1", "1-3"),
            ("3-1", "3:1"), ("10-20", "20-30"), ("1914-1918", "1939-1943"), ("555-1234", "-679"),
            ("(555) 123-4567", "(555) 124-4568"),
            (r"\text{3-1}", r"\text{2-0}"), ("2024/01/05", "2024/5/1"), ("1/2/3", "1/6"), ("2x4", "4x2"), ("2x4", "8"),
            ("8", "2x4"),
            ("6-4, 6-3", "2,3"),
        ],
    ),
    "spaces": (
        [
            ("6 - 5i", r"6 - 5\,i"), ("x^3+3x-6", r"x^3+3\;x-6"), ("x^3+3x-6", r"x^3+3\:x-6"), ("x^3+3x-6", r"x^3+3\ x-6"),
            (r"2 \sec x", r"2\sec\,x"), (r"\sin x", r"\sin\!x"), ("(a,b)", r"(a,\,b)"),
            (r"\frac{1}{m} t", r"\frac{1}{m}\,t"),
            ("6-5i", r"6-5\hspace{1mm}i"), (r"\frac12", r"\left.\frac12\right."),
        ],
        [("6-5i", r"6\,5-i"), ("x+3", r"x\,3"), ("5", r"5\hspace{6}")],
    ),
    "fonts and colours": (
        [
            (r"\frac{14}{3}", r"{14 \over 3}"), (r"\frac{x+1}{2}", r"{x+1\over2}"), (r"\binom{n}{2}", r"{n \choose 2}"),
            (r"\binom{n}{2}", r"\tbinom{n}{2}"), (r"\binom{n}{2}", r"\dbinom n2"),
            (r"\frac{14}{3}", r"\mathbf{\frac{14}{3}}"),
            ("72", r"{\bf 72}"), ("72", r"\textcolor{red}{72}"), ("72", r"\color{red}{72}"),
            ("72", r"\color[rgb]{1,0,0}72"),
            ("x^2+1", r"{\color{red} x^2+1}"), ("x^2", r"x^\mathbf{2}"), ("(1,2)", r"(\mathbf{1},\textcolor{blue}{2})"),
            (r"15\text{ cm}^2", r"\textcolor{red}{15}\text{ cm}^2"),
            (r"\text{even}", r"\underline{\textbf{\textit{Even}}}"), ("5", r"\Large 5"),
            ("-5", "{-}5"), ("5", "{}5"), ("x<5", "x{<}5"),
        ],
        [
            (r"\frac{14}{3}", r"{3\over14}"), (r"x+\frac12", r"{x+1\over2}"), (r"\binom{n}{2}", r"{2\choose n}"),
            (r"\frac12", r"{1\choose2}"),
            (r"\binom{n}{2}", r"\frac{n}{2}"), ("72", r"\textcolor{red}{27}"), ("72", r"\color{72}"),
            ("5", r"\color{5}"), ("3", r"\textcolor{2}{3}"),
            ("5", r"5\textcolor{white}{6}"), ("56", r"5\textcolor{white}{6}"), ("5", r"\cancel{5}"),
        ],
    ),
    "matrices": (
        [
            (COLUMN, r"\left[\begin{array}{c}1\\2\end{array}\right]"),
            (COLUMN, r"\left[\begin{matrix}1\\2\end{matrix}\right]"),
            (COLUMN, r"\left(\begin{smallmatrix}1\\2\end{smallmatrix}\right)"),
            (COLUMN, r"\begin{bmatrix*}[r]1\\2\end{bmatrix*}"),
            (COLUMN, r"\left(\begin{array}{@{}c@{}}1\\2\end{array}\right)"),
            (COLUMN, r"\frac{1}{2}\begin{pmatrix}2\\4\end{pmatrix}"), (COLUMN, r"-\begin{pmatrix}-1\\-2\end{pmatrix}"),
            (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", r"\left|\begin{array}{cc}1&2\\3&4\end{array}\right|"),
        ],
        [
            (COLUMN, r"2\begin{pmatrix}1\\2\end{pmatrix}"), (COLUMN, r"\left|\begin{array}{c}1\\2\end{array}\right|"),
            (COLUMN, r"\left[\begin{array}{cc}1&2\end{array}\right]"), (COLUMN, COLUMN + "^2"), (COLUMN, COLUMN + COLUMN),
            (r"\begin{pmatrix}3\\6\end{pmatrix}", "1+2" + COLUMN), (r"\begin{pmatrix}3\\6\end{pmatrix}", "5-2" + COLUMN),
            (r"\begin{vmatrix}2&4\\6&8\end{vmatrix}", r"2\begin{vmatrix}1&2\\3&4\end{vmatrix}"),
        ],
    ),
    "periods": (
        [(r"\frac{7}{99}", r"0.070707\ldots"), (r"\frac13", "0.333..."), (r"\frac16", "0.1666…"),
        (r"\frac13", r"0.\dot{3}")],
        [(r"\frac13", r"0.33\ldots"), (r"\frac{7}{99}", r"0.070708\ldots"), (r"\frac{7}{99}", "0.0707"),
        ("0.333", "0.333..."), ("1", "0.999")],
    ),
    "percent and degree signs": (
        [(r"25\%", "25％"), (r"25\%", "25 percent"), (r"25\%", "25 pct"), (r"90^\circ", "90°"), (r"0.5\%", "0.5%")],
        [
            ("0.25", r"0.25\%"), (r"\frac14", r"\frac14\%"), (r"0.5\%", "0.5"), ("0.05", r"0.05\%"), ("25", r"0.25\%"),
            ("1.5", r"1.5\%"),
            ("0.25", r"0.25\text{ per cent}"), (r"\frac{\pi}{6}", r"\frac{\pi}{6}^\circ"), (r"\pi^\circ", r"\pi"),
            ("1.5", r"1.5^\circ"),
            (r"90^\circ", r"\frac{\pi}{2}"), ("0.5", r"50^\circ"),
        ],
    ),
    "characters": (
        [
            ("12", "１２"), ("3", "٣"), ("12", "𝟏𝟐"), ("(1,2)", "（1，2）"), ("1,2", "1、2"), (r"\{1,2\}", "｛1，2｝"),
            ("5", "5。"), ("-5", "－5"),
            (r"\frac12", "½"), (r"\frac52", "2½"), (r"\frac23", "⅔"), ("x^{10}", "x¹⁰"), ("x^{-1}", "x⁻¹"),
            ("x_1", "x₁"), (r"2\sqrt{3}", "2√3"),
            (r"\sqrt{12}", "√12"), (r"\sqrt[3]{2}", "∛2"), (r"\log_2 n", "log₂n"), (r"2\alpha", "2α"), ("x=5", "x＝5"),
            (r"\text{(B)}", "（B）"),
        ],
        [
            ("21", "１２"), ("3", "٤"), (r"\frac12", "⅓"), (r"\frac52", "2⅓"), ("x^{10}", "x¹0"), ("x^2", "x₂"),
            ("12", "1²"), ("2^3", "２３"),
            (r"\sqrt{1}2", "√12"), ("5", "５０"),
        ],
    ),
    "names": (
        [
            ("5", "f(2)=5"), ("f(2)=5", "5"), ("5", "|AB|=5"), ("5", r"\overline{AB}=5"), ("12", "[ABC]=12"),
            (r"\frac12", r"P(A\cap B)=\frac12"),
            (r"(2,\frac{\pi}{3})", r"(r,\theta)=(2,\frac{\pi}{3})"), ("30", r"\angle ABC=30"), ("6", r"\gcd(12,18)=6"),
            ("15", r"\text{Area of the triangle} = 15"),
        ],
        [
            ("2", "f(2)=5"), ("f(2)=5", "f(3)=5"), ("f(2)=5", "g(2)=5"), ("5", "x(2)=5"), ("5", "3(x+2)=5"),
            ("5", "|x|=5"), ("5", "f(2)>5"),
            (r"(2,\pi)", r"(\theta,r)=(2,\pi)"), ("(1,2)", "(y,x)=(1,2)"), ("(1,2)", "(x,y,z)=(1,2)"),
            ("10", r"\text{twice }x=10"),
            ("5", r"\text{not }x=5"), ("5", r"\not=5"),
        ],
    ),
    "factors": (
        [("xy", "yx"), ("xy", r"y\cdot x"), ("2abc", "2cba"), ("kxy", "xyk"), ("mgR", "Rgm")],
        [("xy", "xz"), ("xy", "xyy"), ("xy", "XY"), ("CD", "DC"), ("no", "on"), ("km", "mk"), (r"\text{xyz}", "zyx")],
    ),
    "bases": (
        [
            ("101_2", "(101)_2"), ("101_2", "101_{(2)}"), ("101_2", "101₂"), ("101_2", r"101_\text{two}"),
            ("101_2", r"101_{\text{base }2}"),
            ("101_2", r"101\text{ (base 2)}"), ("101_2", "101 in base 2"), ("1A_{16}", r"1A_{\text{sixteen}}"),
        ],
        [("101_2", r"101\text{ base }3"), ("101_2", "(101)_3"), ("101_2", "110 base 2"), ("101_2", "101^2"),
        ("-101_2", "101_2")],
    ),
    "powers in plain text": (
        [("x^2+2x+1", "x**2+2*x+1"), (r"2\sqrt{3}", "2*3^(1/2)"), (r"2\sqrt{3}", "2*3**0.5"), ("e^{2x}", "e^(2x)"),
            ("x^{-1}", "x**-1"), ("x^{-1}", "x^(-1)"), (r"\frac12", r"\nicefrac{1}{2}"), (r"\frac12", r"\sfrac12")],
        [("x-1", "x**-1"), ("x^2", "x*2"), ("x^3", "x**1**3"), ("2^{10x}", "2**10x"), ("2^{x3}", "2^(x)3"),
            ("x^{1/2}", "x^1/2"), (r"\frac{1}{23}", r"\nicefrac{1}{2}3")],
    ),
    "intervals by words, brackets and properties": (
        [("[2,5)", r"\{x\mid 2\le x<5\}"), ("[2,5)", r"\{x\in\mathbb{R}: 2\le x<5\}"), ("[2,5)", "[2,5["),
            (r"(-\infty,3)", r"]-\infty,3["), (r"(-\infty,1)\cup(2,\infty)", r"x<1\text{ or }x>2"),
            (r"(-\infty,1)\cup(2,\infty)", r"x<1\lor x>2"), (r"(-\infty,1)\cup(2,\infty)", r"]-\infty,1[\bigcup]2,\infty["),
            (r"x<1\text{ or }x>2", r"(2,\infty)\cup(-\infty,1)"), ("1,2", r"x=1\lor x=2")],
        [("[2,5)", r"\{x\mid 2\le x\le5\}"), ("[2,5)", r"\{x\mid 2\le y<5\}"), ("[2,5)", r"\{n\in\mathbb{Z}\mid 2\le n<5\}"),
            ("(2,5)", "[2,5["), ("(2,5)", "]2,5]"), ("[2,5]", "]2,5["), ("[2,5)", r"\{2,5\}"),
            (r"(-\infty,1)\cup(2,\infty)", r"x<1\text{ and }x>2"), (r"(-\infty,1)\cup(2,\infty)", "x<1, x>2"),
            (r"(-\infty,1)\cup(2,\infty)", r"x\le1\text{ or }x>2"), (r"(-\infty,1)\cup(2,\infty)", r"x<1\text{ or }y>2")],
    ),
    "decoration": (
        [("5", r"5\checkmark"), ("5", r"\therefore 5"), (r"90^\circ", "90^o"), (r"90^\circ", "90^{o}"), (r"\text{Yes}", "YES")],
        [("5", "5..."), ("56", r"5\checkmark6"), (r"\frac32", r"\frac{1}{2}3"),
            ("5", r"5\textcolor[gray]{1}{6}"), ("56", r"5\textcolor[gray]{1}{6}"),
            ("5", r"\textcolor[rgb]{1,1,1}{5}"), ("5", r"\color[HTML]{FFFFFF}5"), ("5", r"\textcolor{white!95!black}{5}"),
            (r"90^\circ", "9^o"), (r"\text{Yes}", "YES NO")],
    ),
    "options": (
        [(r"\text{E}", "E"), (r"\text{(E)}", "(E)"), (r"\text{b}", "B")],
        [(r"\text{E}", "e"), (r"\text{(E)}", "(e)"), (r"\text{E}", r"\text{e}"), (r"\text{I}", "i"),
            ("A", "(A)²"), ("A", "A₁"), ("A", "A×2"), ("A", "√A")],
    ),
}  # fmt: skip
RIGHT += [pair for right, _ in FORMS.values() for pair in right]


WRONG = [
    (r"5\text{ m}, 3", r"5\text{ cm}, 3"), (r"(5\text{ m}, 3)", r"(5\text{ cm}, 3)"), (r"\$5, \$6", r"5\%, 6\%"),
    (r"\frac73", "2(1/3)"), ("2x+3", "x=2x+3"), (r"0.\overline{3}", "0.3"), (r"5x-7y+11z+4=0", "5x-7y+19z+4=0"),
    (r"\text{a-c yes}", "ac yes"), (r"\text{abcd}/2", "abcd2"),
    (r"2\sqrt{3}", "2"), (r"2\sqrt{3}", r"\sqrt{3}"), (r"2\sqrt{3}", r"3\sqrt{2}"), (r"2\sqrt{3}", r"2\sqrt{2}"),
    ("3^{10}", "3"), ("3^{10}", "10"), ("3^{10}", "30"), ("3^{10}", "310"), ("3^{10}", "10^3"), (r"\sqrt2", "2"),
    (r"\sqrt2", "1.41"), (r"\sqrt2", "1.4142"), (r"\sqrt2", "1.414214213"), (r"\pi/2", r"\pi"), (r"\pi/2", "2"),
    (r"\pi/2", r"2/\pi"), (r"\pi/2", "1.57"), ("(1,2)", "(2,1)"), ("(1,2)", "1"), ("(1,2)", r"\{1,2\}"),
    ("(1,2)", "[1,2]"), ("(1,2)", "1,2"), ("(1,2)", "12"), ("(1,2)", "(1,2,3)"), ("(1,2)", "1.2"), ("[0,1)", "(0,1)"),
    ("[0,1)", "(0,1]"), ("[0,1)", "[0,1]"), ("1,234", "1,243"), ("1,234", "1"), ("1,234", "1,2,3,4"),
    ("1,234", "1, 234"), ("12", "1 2"), ("12", "1,2"), ("25", "2.5"), ("25", "0025.5"), ("1e-8", "2e-8"),
    ("1e-8", "0"), ("4.6e-24", "0"), ("4.5e33", "4.5"), ("4.5e33", "4.5e32"), ("1.24e-8", "1.25e-8"),
    (r"\frac12", r"\frac21"), (r"\frac12", "12"), (r"\frac12", "2"), (r"\frac12", "1"), (r"\frac13", "0.333"),
    (r"\frac13", "0.333334"), (r"\frac23", "0.66"), (r"1\frac{4}{5}", r"\frac45"), (r"1\frac{4}{5}", r"\frac{14}{5}"),
    (r"14\frac67", r"\frac{14\cdot6}{7}"), ("3 1/2", "31/2"), ("3 1/2", "3/2"), (r"90^\circ", r"60^\circ"),
    (r"90^\circ", r"90\%"), (r"5\text{ m}", r"5\text{ cm}"), (r"15\mbox{ cm}^2", r"15\text{ cm}^3"),
    (r"15\mbox{ cm}^2", r"15\text{ cm}"), (r"5.4 \text{ cents}", r"\$5.4"), (r"80\text{ cents}", r"\$80"),
    ("62.5%", "6.25%"), ("62.5%", "0.0625"), (r"8\%", "0.8"), ("0.25", "25"), ("25", "0.25"), (r"\text{even}", "odd"),
    (r"\text{even}", "not even"), (r"\text{even}", "even or odd"), (r"\text{Tuesday}", "Thursday"),
    (r"\text{Tuesday}", "Tuesday, Wednesday"), (r"\text{(B)}", "C"), (r"\text{(B)}", "A or B"),
    (r"\text{(B)}", "A, B"), ("C", "A"), ("C", "C, D"), ("C", "c"), ("C", "C + 1"), ("no", "on"),
    (r"\text{LQSX}", "SXLQ"), ("101_2", "101_3"), ("101_2", "5"), ("101_2", "110_2"), ("52_8", "42"),
    ("52_8", "52_9"), ("101", "101_2"), ("1,-2", "1"), ("1,-2", "1,2"), ("1,-2", "1,-2,3"), ("1,-2", "-1,2"),
    ("3, 5, 7", "357"), ("3, 5, 7", "3,5"), ("3, 5, 7", "3,5,5"), (r"\{1,2\}", r"\{1,2,3\}"), (r"\{1,2\}", "(1,2)"),
    (r"\{1,2\}", "[1,2]"), ("(1,2)", "x=2, y=1"),
    ("(1,2)", "x=1, x=2"), ("[1,2]", "x=1, y=2"), ("(1,2)", "x=1, 2"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}"), (r"1 \pm \sqrt{19}", r"-1\pm\sqrt{19}"),
    (r"1 \pm \sqrt{19}", r"1\pm 19"), (r"\pm 3", "3"), ("3", r"\pm 3"), ("y = 2x+1", "y=2x-1"), ("2x-y+1=0", "(2x-y+1=0)^2"),
    ("2x-y+1=0", "10(2x-y+1=0)"), ("y = 2x+1", "y=x+1"),
    ("y = 2x+1", "y=2x"), ("y = 2x+1", "x=2y+1"), ("y = 2x+1", "y = 1"), ("x=5", "y=5"), ("5", "2x=5"),
    ("5", "x=4=5"), ("5", "x=5, x=6"), ("5", "5 or 6"), ("0", "5x=0"), ("5x - 7y + 11z + 4 = 0", "5x-7y+11z-4=0"),
    ("5x - 7y + 11z + 4 = 0", "0"), ("5x - 7y + 11z + 4 = 0", "5x-7y+11z+4"), ("x > 2", r"x \ge 2"), ("x > 2", "x<2"),
    ("x > 2", "2"), (r"(2,\infty)", r"(-\infty,2)"), (r"(2,\infty)", r"(2,-\infty)"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty,2)"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty,2)\cap(3,\infty)"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty,2),(3,\infty)"),
    (r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}", r"\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", "-2"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{vmatrix} 1 & 2 \\ 3 & 4 \end{vmatrix}"),
    (r"\begin{pmatrix} 1 & 2 & 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"),
    ("(a+5)(b+2)", "(a+5)(b-2)"), ("6r^2-4r-24", "6r^2-4r+24"), ("6r^2-4r-24", "6R^2-4R-24"), ("1+2i", "1-2i"),
    ("1+2i", "3i"), ("1+2i", "2+i"), ("2RC+R+C", "2rc+r+c"), ("x^8", "x8"), ("x^{12}", "x^1 2"), ("x^{12}", "x^{1}2"),
    ("e^{-2t}", "e^{2t}"), (r"\frac{1}{n}", "n"), (r"\frac{n}{2}", r"\frac{2}{n}"), ("3:5", "5:3"), ("3:5", "35"),
    ("3:45", "3:54"), ("3:45", "345"), (r"8\!:\!34 \text{ p.m.}", "8:34 a.m."), ("3:5", "0.6"),
    (r"\infty", r"-\infty"), (r"\infty", "9999999999"), ("10^{100}", "10^{99}"), ("2^{2008}-2", "2^{2008}"),
    ("100!", "99!"), (r"\log_2 n", r"\log_3 n"), (r"\ln 2", r"\log_{10} 2"), (r"\sin x", r"\cos x"),
    (r"\sin x", r"\sin 2x"), ("CD", "DC"), (r"\frac{1}{7}\triangle ABC", r"\frac{1}{7}"), ("f(4-x)", "f(x-4)"),
    ("|x-2|", "x-2"), ("x+1", "|x+1|"),
    ("x+y", "|x+y|"), (r"\sqrt{x^2}", "x"), ("2", ""), ("2", "x"), ("x", "2"), ("2", r"\text{two}"), ("m", "n"),
    ("2k", "2"), (r"288\pi", "288"), ("-5", "5"), ("5", "-5"), ("5", "+-5"), ("5", "5!"), ("5", "5x"), ("5", r"5\pi"),
    ("5", "5i"), ("5", r"5\text{0}"), ("5", r"5\text{+1}"), ("5", r"5\text{!}"), ("5", r"5\text{i}"),
    ("5", r"5\text{ is wrong, it is 6}"), ("12", r"12\text{ or 13 or 14}"), ("2x+1", r"2x+1\text{ for even x, else 2x}"),
    (r"2\pi", r"2\pi\mathrm{r}"), ("x^2", r"x^2\mathrm{y}^3"), (r"\sqrt2", r"\sqrt2\text{i}"),
    (r"3\sqrt2", r"3\sqrt2\text{ million}"), ("3", r"3\text{ and a half}"), ("5", r"5\text{k}"), ("5", r"5\text{M}"),
    ("5", r"5\text{x}^2"), ("3", "3 quarters"), ("3", "3 below zero"), ("3", "3 divided by four"), ("3", "3 root two"),
    ("3", "3 point five"), ("3", "3 negative"), ("12", "12 dozen"), ("5", "5 thousandths"), ("5", "5 squared"),
    ("5", "5 perhaps six"), ("3", "3 plus four"), ("3", "3 hundredth"), (r"5\text{ m}", r"5\text{ nm}"),
    (r"5\text{ m}", r"5\text{ light years}"), (r"5\text{ kJ}", r"5\text{ J}"), (r"5\text{ eV}", r"5\text{ keV}"),
    (r"5\text{ m/s}", r"5\text{ km per hour}"), (r"5\text{ m/s}^2", r"5\text{ m}^2\text{/s}"),
    (r"\frac{1+(-1)^n}{2}", r"\cos(n\pi/2)"), (r"\lfloor\frac n2\rfloor", r"2\lfloor\frac n4\rfloor"),
    ("n", "n(-1)^{n(n-1)/2}"), ("5", r"\phantom{5}"), ("5", r"5\hspace{6}"), ("5", r"\hphantom{x}5"), ("x", r"\text{X}"),
    ("AB", "ab"), (r"\text{AB}", "ab"), ("x=1,y=2", "2,1"), ("5", "[5]"), ("5", r"x\in 5"), ("5", "--5"),
    (r"8\!:\!34 \text{ p.m.}", "8:34"), (r"15\mbox{ cm}^2", r"15\mbox{ cm}^8"), (r"5\text{ m s}^{-1}", r"5\text{ m}"),
    ("C", r"C\ 5"), ("C", r"\mathrm{(C)}\ D"), ("3", "3 halfs"), ("3", "3 doz"), ("72", r"72\text{ish}"), ("72", "72 ish"),
]  # fmt: skip
WRONG += [pair for _, wrong in FORMS.values() for pair in wrong]


@pytest.fixture(scope="module", autouse=True)
def _close_the_pool():
    yield
    pool.close()


def boxed(answer):
    return f"So it is \\boxed{{{answer}}}."


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_right(gold, answer):
    assert verify_math(boxed(answer), gold) == 1.0
    assert verify_math(boxed(answer), gold, strict=True) == 1.0


@pytest.mark.parametrize(("gold", "answer"), LENIENT)
def test_right_but_not_beyond_doubt(gold, answer):
    assert verify_math(boxed(answer), gold) == 1.0
    assert verify_math(boxed(answer), gold, strict=True) == 0.0


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_wrong(gold, answer):
    assert verify_math(boxed(answer), gold) == 0.0
    assert verify_math(boxed(answer), gold, strict=True) == 0.0


@pytest.mark.slow
def test_there_are_enough_pairs_and_the_pool_gives_the_same():
    pairs = [*RIGHT, *LENIENT, *WRONG]
    assert len(set(pairs)) > 300
    wanted = [1.0] * len(RIGHT + LENIENT) + [0.0] * len(WRONG)
    columns = [""] * len(pairs), [boxed(answer) for _, answer in pairs], [gold for gold, _ in pairs]
    assert math_reward(*columns) == wanted
    assert asyncio.run(async_math_reward(*columns)) == wanted
    assert strict_math_reward(*columns) == [1.0] * len(RIGHT) + [0.0] * (len(LENIENT) + len(WRONG))


@pytest.mark.parametrize("gold", [gold for gold, _ in RIGHT])
def test_a_gold_scores_itself(gold):
    dollars = gold if gold.startswith("$") or "\\" not in gold else f"${gold}$"
    for text in (
        boxed(gold),
        f"So the answer is {dollars}.",
        f"<think>It is \\boxed{{7}}.</think>\nThe answer is {dollars}.",
    ):
        assert verify_math(text, gold) == verify_math(text, gold, strict=True) == 1.0, text


# The final answer ---------------------------------------------------------------------------------------------------

FINAL = [  # text, gold, right, right in strict mode
    ("so \\boxed{5} and \\boxed{6}", "6", 0, 0), ("\\boxed{\\frac12} that is \\boxed{0.5}", "\\frac12", 1, 1),
    ("\\boxed{5} ... \\boxed{5}", "5", 1, 1), ("\\boxed{1} and \\boxed{-2}", "1,-2", 0, 0),
    ("<think>\\boxed{5}</think> It is 7.", "5", 0, 0), ("<think>\\boxed{7}</think> \\boxed{5}", "5", 1, 1),
    ("\\boxed{5", "5", 0, 0), ("\\boxed{}", "5", 0, 0), ("\\fbox{5}", "5", 1, 1), ("\\boxed{\\boxed{5}}", "5", 1, 1),
    ("#### 5", "5", 1, 1), ("#### $\\frac{1}{2}$", "\\frac12", 1, 1),
    ("#### Step 1: think\nThe answer is 7.", "7", 1, 1), ("The answer is $\\frac{1}{2}$.", "\\frac12", 1, 1),
    ("The answer is \\(\\frac{1}{2}\\).", "\\frac12", 1, 1), ("The answer is: \\[\\frac{1}{2}\\]", "\\frac12", 1, 1),
    ("**Answer:** $x=5$", "5", 1, 1), ("The final answer is $5$. I hope it is correct.", "5", 1, 1),
    ("The answer is 42.\n\nQuestion: how many of 7 are no fruit?", "42", 1, 1),
    ("The answer is 72. So 24+48=72.", "72", 1, 1),
    ("The answer is 5 because 2+3=5.", "5", 1, 1), ("The answer is 42 apples, since they are red.", "42", 1, 1),
    ("The answer is not 5", "5", 0, 0), ("The answer is 5 or 6", "5", 0, 0), ("The answer is 5 or 6", "5,6", 1, 1),
    ("The answer is 5, 6.", "5", 0, 0), ("The answer is 12 (or 13)", "12", 0, 0),
    ("The answer is therefore $2\\sqrt{3}$.", "2\\sqrt{3}", 1, 1),
    ("The answer is $2\\sqrt{3}$ or $3\\sqrt{2}$.", "2\\sqrt{3}", 0, 0),
    ("The answer is even.", "\\text{even}", 1, 1), ("The answer is Tuesday.", "\\text{Tuesday}", 1, 1),
    ("The answer is (B).", "\\text{(B)}", 1, 1), ("The answer is $(1,2)$.", "(1,2)", 1, 1),
    ("The answer is 1. No: the answer is 2.", "2", 1, 1), ("The answer is 1. No: the answer is 2.", "1", 0, 0),
    ("The answer is 3.5.", "3.5", 1, 1), ("Thus $x = \\frac{1}{2}$.", "\\frac12", 1, 0),
    ("We get y = 2 + 3 = 5", "5", 1, 0), ("x = 1 or x = 2", "2", 0, 0), ("x = 1, x = 2", "2", 0, 0),
    ("We get 5 as wanted.", "5", 0, 0), ("5", "5", 1, 0), ("$\\frac12$", "\\frac12", 1, 0), ("5 6", "5", 0, 0),
    ("first 3, then 4", "4", 0, 0), ("", "5", 0, 0), ("The answer is", "5", 0, 0),
    ("The answer is\n\n$$5$$", "5", 1, 1), ("The answer is \\boxed{5}.", "5", 1, 1),
    ("the answer is 6, so \\boxed{5}", "5", 1, 1), ("The answer is $x^2 + 1$, which is positive", "x^2+1", 1, 1),
    ("The answer is 1,234 dollars.", "1234", 1, 1), ("The answer is $\\$18.90$.", "\\$18.90", 1, 1),
    ("The answer is 7 p.m.", "7\\text{ p.m.}", 1, 1), ("The answer is 2 and it is 3", "2", 0, 0),
    ("Answer: A, B, C, D", "\\text{(B)}", 0, 0), ("the answer is 5 = 6", "5", 0, 0), ("x = 5. y = 6", "6", 1, 0),
    ("It is not = 5", "5", 0, 0), ("If x = 5", "5", 0, 0), ("x=4 x=5", "5", 0, 0), (r"x=4\lor x=5", "5", 0, 0),
    ("It doesn't give x = 5", "5", 0, 0), ("The answer is 5. It might also be 6.", "5", 0, 0), ("y = 2x = 10", "10", 1, 0),
    ("The answer is $5$, where n is odd.", "5", 1, 1), ("I don't think the answer is 5.", "5", 0, 0),
    ("The answer is $5$, $6$", "5", 0, 0), ("The answer is $5$ (not $6$).", "5", 0, 0),
    ("The answer is 5 units.", "5", 1, 1), ("The answer is 4 therefore 5", "4", 0, 0), ("Answer\n18", "18", 1, 1),
    ("The answer is 4... or five?", "4", 0, 0), ("The answer is 4. Hmm, no, five.", "4", 0, 0), ("Answer: 18", "18", 1, 1),
    ("The answer is 5 as 6", "5", 0, 0),
    ("My answer is 4. Wait no. I mean 5.", "4", 0, 0), ("The answer is 4!", "4", 0, 0), ("The answer is 4!", "24", 1, 1),
    ("The answer is even!", "\\text{even}", 1, 1), ("The answer is 42 apples, since 6*7=43.", "42", 1, 1),
    ("<think>\\boxed{5}</think> \\boxed{5}", "5", 1, 1), ("\\boxed{6 \\boxed{5}}", "5", 0, 0),
    ("\\boxed{\\boxed{5}6}", "5", 0, 0), ("\\boxed{x \\neq \\boxed{5}}", "5", 0, 0),
]  # fmt: skip


@pytest.mark.parametrize(("text", "gold", "right", "strictly"), FINAL)
def test_the_final_answer(text, gold, right, strictly):
    assert verify_math(text, gold) == right
    assert verify_math(text, gold, strict=True) == strictly


def test_a_sentence_ends_outside_of_formulas():
    for text, clause in (
        ("3.5. Then", "3.5"), ("$x. y$. Then", "$x. y$"), (r"\text{sq. units}. Then", r"\text{sq. units}"),
        ("5", "5"), ("$5. Then", "$5"),
        (r"\(a. b\)! Then", r"\(a. b\)"), ("a\nb", "a"), (r"\{1, 2\}. x", r"\{1, 2\}"),
    ):  # fmt: skip
        assert text[: sentence_end(text)] == clause


def test_answers_are_bounded():
    assert final_answers("\\boxed{" + "1" * 600 + "}") == []
    assert final_answers("".join(f"\\boxed{{{i}}}" for i in range(5))) == []
    assert final_answers("The answer is " + "1" * 600) == []


# Gold ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gold", "text"),
    [
        (5, "5"), (2.5, "2.5"), ("She has 3.\n#### 1,000", "1,000"), (r"thus \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"2\sqrt{3}", r"2\sqrt{3}"),
        (None, None), (True, None), ([5], None), ({"a": 5}, None), (b"5", None),
        (float("inf"), None), ("", None), ("None", None), (float("nan"), None),
        (r"\boxed{1} \boxed{2}", None),
        (r"\boxed{1", None), ("x" * 600, None), ("\ud800", None), ("5\x00", None),
        ("it is any function with a root that is not an integer", None),
    ],
)  # fmt: skip
def test_gold(gold, text):
    assert parse_gold(gold) == text


def test_unscorable_gold_gives_none_and_one_warning(caplog, monkeypatch):
    monkeypatch.setattr(completion, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert math_reward([""] * 3, [boxed("5")] * 3, ["5", None, ""]) == [1.0, None, None]
    assert len(caplog.records) == 1
    assert "math_reward" in caplog.text
    assert verify_math("5", None) is None
    assert parse_gold(10**5000) is None


# The reward function ------------------------------------------------------------------------------------------------


def test_both_dataset_formats():
    conversations = [
        [
            {"role": "assistant", "content": boxed("7")},
            {"role": "tool", "content": "9"},
            {"role": "assistant", "content": boxed("5")},
        ],
        [{"role": "assistant", "content": [{"type": "text", "text": r"\boxed{"}, {"type": "text", "text": "5}"}]}],
        [{"role": "assistant", "content": None}],
        [],
    ]  # fmt: skip
    assert math_reward([""] * 4, conversations, ["5"] * 4) == [1.0, 1.0, 0.0, 0.0]
    with pytest.raises(ConfigurationError):
        math_reward([""], [None], ["5"])
    with pytest.raises(ValueError):
        math_reward(["", ""], ["5", "5"], ["5"])


def test_the_gold_comes_first(monkeypatch):
    import math_verify

    seen = []
    monkeypatch.setattr(math_verify, "verify", lambda gold, answer, **kwargs: seen.append((gold, answer)))
    assert symbolic_equal(r"x+\frac{x}{2}", r"\frac{3x}{2}", equation=False, strict=True) is None
    assert seen == [(parse(r"x+\frac{x}{2}"), parse(r"\frac{3x}{2}"))]


def test_strict_needs_both(monkeypatch):
    import math_verify

    monkeypatch.setattr(math_verify, "verify", lambda *args, **kwargs: False)
    assert verify_math(boxed(r"\frac{3x}{2}"), r"x+\frac{x}{2}") == 1.0
    assert verify_math(boxed(r"\frac{3x}{2}"), r"x+\frac{x}{2}", strict=True) == 0.0
    monkeypatch.setattr(math_verify, "verify", lambda *args, **kwargs: True)
    assert verify_math(boxed(r"\frac{3x}{5}"), r"x+\frac{x}{2}", strict=True) == 0.0


def test_equal_rows_are_compared_once_and_what_does_not_finish_is_wrong(monkeypatch):
    calls = []

    def score(function, given):
        calls.extend(given)
        return [pool.Scored(failure="time limit of 5 s") for _ in given]

    monkeypatch.setattr(math_module, "score", score)
    texts = [boxed(r"\sqrt{12}")] * 3 + [boxed("5"), boxed(r"\sqrt{27}")]
    golds = [r"2\sqrt{3}"] * 3 + ["5", r"3\sqrt{3}"]
    assert math_reward([""] * 5, texts, golds) == [0.0, 0.0, 0.0, 1.0, 0.0]
    assert len(calls) == 2
    assert json.loads(json.dumps(calls[0])) == [[r"\sqrt{12}"], r"2\sqrt{3}", False]
    assert verify_answers(*calls[0]) == 1.0


def test_easy_answers_need_no_pool(monkeypatch):
    monkeypatch.setattr(math_module, "score", lambda *args: pytest.fail("asked the pool"))
    assert math_reward([""] * 4, [boxed("5"), boxed("x"), boxed("1,2"), "no idea"], ["5", "y", "2,1", "3"]) == [
        1,
        0,
        1,
        0,
    ]


def test_a_missing_verifier_is_said(monkeypatch):
    monkeypatch.setattr(math_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"exgrpo\[math\]"):
        math_reward([""], ["5"], ["5"])


def test_loading_it_loads_neither_torch_nor_sympy():
    code = (
        "import sys, exgrpo.rewards.math.reward as m; m.math_reward([''], ['\\\\boxed{5}'], ['5']);"
        "print({'torch', 'trl', 'sympy', 'math_verify'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# Parts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("1,234", "number"), ("2,251,252", "number"), ("(2,251,252)", "()"), ("[0,1)", "[)"), (r"\{1,2\}", "{}"),
        ("1, 2", "list"),
        (r"(0,1)\cup(2,3)", "union"), (r"\begin{pmatrix}1\\2\end{pmatrix}", "matrix 2x1"), ("x^2", "expression"),
        ("x+y=1", "equation"),
        ("101_2", "base"), ("3:45", "text"), (r"\text{even}", "text"), ("x>2", "()"), (r"1\le x<2", "[)"),
        ("(5)", "number"), ("x=5", "number"),
    ],
)  # fmt: skip
def test_forms(text, kind):
    assert read(text).kind == kind


@pytest.mark.parametrize(
    "text", ["", " ", "x" * 513, "\u202e5", "5\x1b", "\ud800", r"\frac123", "1≈2≈3", "(" * 20 + "1,2" + ")" * 20]
)
def test_what_no_answer_is(text):
    form = read(text)
    assert form is None or form.kind == "expression"


def test_units():
    spellings = [
        ("cm^2", "square centimeters"),
        ("sq. ft", "square feet"),
        ("p.m.", "PM"),
        ("mph", "mph"),
        ("degrees", "degree"),
    ]
    for a, b in spellings:
        assert known_unit(a) == known_unit(b) != ""
    assert known_unit("apples") == known_unit("") == ""
    assert known_unit("km/h") == "km/hour"


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^{9}}}", "2^3^4", "x!!", r"\binom{99999}{5}", r"\operatorname{eye}(9)", r"\sum_{n=1}^{9}n",
        r"\int x dx", r"\text{x}", "x;y",
        "(" * 13 + "x" + ")" * 13, "(x", "(x]", "x" * 400, "9" * 200, "1 2", "5_2", "x'", "x\x00", "√2", r"\det x",
        "__import__('os')",
    ],
)  # fmt: skip
def test_what_the_parser_never_sees(text):
    assert prepare(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "9^{99999}",
        "9^{9^{9}}",
        "9999!",
        "(99!)!",
        r"\exp(9^{99})",
        r"\frac{1}{9^{9^8}}",
        "(9^{999})^{999}",
        r"\frac{dx}{dt}",
    ],
)
def test_what_is_not_computed(text):
    start = time.process_time()
    assert parse(text) is None
    assert time.process_time() - start < 5.0


def test_numeric_and_symbolic():
    for left, right, equal in (
        ("2^{2008}-2", "2^{2008}", False), ("x^{1000}+1", "x^{1000}", False), (r"\sqrt{x^2}", "x", False),
        ("(x+1)^{30}", "(1+x)^{30}", True),
        ("i^2", "-1", True), ("0.5x", "x/2", True), ("E", "e", False), ("I", "i", False),
        ("10^{-30}x", "2*10^{-30}x", False),
    ):  # fmt: skip
        assert (
            symbolic_equal(left.replace("*", r"\cdot "), right.replace("*", r"\cdot "), equation=False, strict=False)
            == equal
        )
    assert rounds_to(r"\sqrt{2}", parse_decimal("1.41421"), 5)
    assert not rounds_to(r"\sqrt{2}", parse_decimal("1.41422"), 5)
    assert not rounds_to("x", parse_decimal("1.41422"), 5)


def parse_decimal(text):
    return read(text).number


# Hostile text -------------------------------------------------------------------------------------------------------

TOWER = "9^{" * 40 + "9" + "}" * 40
HOSTILE = [
    TOWER, "9**9**9**9", "9^9^9^9", "(9^{9999})^{9999}", "99999999999!", r"\binom{9999999}{4999999}", "{" * 100_000,
    "(" * 100_000 + ")" * 100_000,
    r"\frac{" * 100_000, "9" * 3_000_000, "0." + "3" * 3_000_000, "1," * 1_000_000, "1e999999999",
    "__import__('os').system('touch x')",
    r"\operatorname{zeros}(99999,99999)", r"\sum_{n=1}^{99999999} n!", "\x00\x1b\x07", "\u202e21\u202c",
    "\u2066" * 1000, "\ud800\udfff", "٣",
    r"\frac{1}{", r"\sqrt[3]{", r"\begin{pmatrix}1&2", r"\left(1,", "x^{y^{z^{x^{y^{z}}}}}", "(x+y+z+1)^{99999}",
    r"\pm" * 100_000, "≈" * 400,
    "=" * 400, r"\cup" * 100, "a" * 500, r"\text{" * 80, "1:" * 250, "$" * 500, "'" * 500, "1 cm " * 100,
    r"\exp{\exp{\exp{\exp{99}}}}",
]  # fmt: skip


@pytest.mark.parametrize("wrapper", ["\\boxed{%s}", "The answer is %s.", "so x = %s", "#### %s", "%s", "\\boxed{%s"])
def test_hostile_text_is_fast_and_wrong(wrapper):
    texts = [wrapper.replace("%s", text) for text in HOSTILE]
    start = time.process_time()
    for gold in (r"2\sqrt{3}", "x^2+1", "(1,2)"):
        assert math_reward([""] * len(texts), texts, [gold] * len(texts)) == [0.0] * len(texts)
    assert time.process_time() - start < 60.0  # a hang would be far longer


@pytest.mark.slow
def test_hostile_gold_is_unscorable_or_wrong():
    for gold in HOSTILE:
        assert math_reward([""], [boxed("5")], [gold])[0] in (None, 0.0)


@pytest.mark.slow
def test_nothing_is_evaluated(tmp_path):
    canary = tmp_path / "canary"
    code = f"__import__('pathlib').Path('{canary}').touch()"
    for text in (
        code,
        f"$({code})$",
        f"x_{{{code}}}",
        rf"\operatorname{{{code}}}",
        rf"\text{{{code}}}",
        f"x;{code}",
        f"exec('{code}')",
    ):
        for gold in ("x", r"\sqrt{2}", text[:200]):
            math_reward([""] * 3, [boxed(text), f"The answer is {text}", text], [gold] * 3)
    assert not canary.exists()
