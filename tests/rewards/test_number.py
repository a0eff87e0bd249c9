"""What reads as a number, and what does not."""

from fractions import Fraction

import pytest

from exgrpo.rewards.number import parse_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42), ("-5", -5), ("−5", -5), ("+5", 5), ("025", 25), ("42.0", 42), (".5", "1/2"), ("5.", 5),
        ("(42)", 42),
        ("1,234", 1234), (r"10{,}000", 10000), (r"10\,000", 10000), (r"11,\! 111,\! 100", 11111100),
        ("12\u00a0345", 12345),
        ("$1,000", 1000), (r"\$32,\!348", 32348), (r"-\$5", -5), (r"\(42\)", 42), ("$42$", 42), ("€ 7", 7),
        ("**42**", 42),
        ("1/2", "1/2"), ("-3/4", "-3/4"), (r"\frac{1}{2}", "1/2"), (r"-\frac12", "-1/2"), (r"\frac 59", "5/9"),
        (r"\dfrac{3}{4}", "3/4"), (r"\frac{-1}{2}", "-1/2"), (r"1\frac{4}{5}", "9/5"), (r"137 \frac{1}{2}", "275/2"),
        ("3 1/2", "7/2"), ("1.5e3", 1500), ("1e-3", "1/1000"), (r"4.5\times 10^{3}", 4500), ("2 x 10^5", 200000),
        ("42%", 42), (r"8 \%", 8), ("42 apples", 42), ("10km", 10), ("60 km/h", 60), ("5 cm^2", 5), ("5 cm²", 5),
        (r"42\text{ cm}", 42), (r"864 \mbox{ inches}^2", 864), (r"5\text{ m}", 5), (r"90^\circ", 90), ("145°", 145),
        ("5 million", 5000000), ("x = 5", 5), ("2+3=5", 5), ("f(x)=1", 1), (r"\frac23 \approx 0.67", "2/3"), ("≈ 5", 5),
        ("5th", 5), (r"5\text{ feet squared}", 5), (r"2.46\approx 2.5", "2.46"),
        (r"15\text{ square units}", 15), (r"30\text{ miles per hour}", 30), (r"3\text{ hours}", 3), ("5 red apples", 5),
        ("minus 5", -5), (r"\text{42}", 42), (r"\mathbf{42}", 42), ("٣", 3), ("１２", 12), ("½", "1/2"), ("2½", "5/2"),
        ("(5{,}120)", 5120), (r"{14 \over 3}", "14/3"), (r"\textcolor{red}{72}", 72), (r"{\bf 72}", 72),
    ],
)  # fmt: skip
def test_reads(text, value):
    assert parse_number(text) == Fraction(value)


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "-", "--5", "five", "inf", "nan", "1,23", "1234,567", "3.5.6", "12:30", "1 234", "1_000", "5\n6",
        "5x", "5 x", "5m", "3 n", "2i", r"2\pi", r"3\sqrt{2}", "5²", "10^2", r"2^{10}", "5!", "5 - 3", "2*3", "52_8",
        "5 or 6", "5, 6", "(1,2)", "(2,251,252)", "2{,}5", r"\color{72}",
        "$5$$6$", r"5\(6\)", "x=4, x=5", "5x - 7y = 0", "0.56 = 56%",
        "1/0", r"\frac{1}{0}", r"\frac{a}{2}", "1e999", "1e99999999", "9**9**9", "9" * 300, "3 halves", "5 and more",
        "3 quarters", "3 below zero", "3 divided by four", "3 point five", "3 root two", "3 negative", "12 dozen",
        "5 thousandths", "5 squared", "5 perhaps six", "3 plus four", "3 times four", "3 hundredth", r"5\text{k}",
        r"5\text{x}^2", r"5\text{0}", r"5\text{ is wrong}", r"5\approx 6", r"5\approx x",
    ],
)  # fmt: skip
def test_refuses(text):
    assert parse_number(text) is None
