r"""Where answers stand, through the reward functions: boxes, `<answer>` elements, `####`; thoughts that the prompt began.

Each table goes both ways: what is right, and the nearest thing that is not.
"""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from exgrpo.rewards import (
    choice_reward,
    code_output_reward,
    format_reward,
    math_reward,
    numeric_reward,
    reasoning_gym_reward,
    strict_math_reward,
)
from exgrpo.rewards.completion import thinking_begun
from exgrpo.rewards.math.reward import async_math_reward
from exgrpo.rewards.reasoning_gym import extract_answer

VALUES = (math_reward, strict_math_reward, numeric_reward)
BOX, TAG = "\\boxed{72}", "<answer>72</answer>"


def of(function, text, gold="72"):
    (reward,) = function(None, [text], [gold])
    return reward


# `<answer>` elements --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", VALUES)
@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<think>24+48</think><answer>72</answer>", 1), ("<think>24+48</think>\n<answer>\n72\n</answer>", 1),
        ("<answer>The answer is 72.</answer>", 1), ("The answer is <answer>72</answer>", 1),
        ("<answer>\\boxed{72}</answer>", 1), ("<answer>We add. So it is $\\boxed{72}$.</answer>", 1),
        ("\\boxed{<answer>72</answer>}", 1), ("<answer> </answer> it is. <answer>72</answer>", 1),
        ("in `<answer>` tags: <answer>72</answer>", 1), ("in `<answer>` and `</answer>`: \\boxed{72}", 1),
        ("<answer>72</answer>\n\\boxed{72}", 1), ("<answer>\\boxed{72}", 1), ("<Answer>72</Answer>", 1),
        ("<answer>#### 72</answer>", 1), ("I use <answer> tags: \\boxed{72}", 1),
        ("<answer>7</answer>2", 0), ("<answer>72", 0), ("<answer>", 0), ("<answer></answer>", 0),
        ("<answer>...</answer> 72", 0),
        ("<answer>72</answer> <answer>73</answer>", 0), ("<answer>73</answer> <answer>72</answer>", 0),
        ("<answer>72</answer>\n\\boxed{73}", 0), ("<answer>\\boxed{72} or \\boxed{73}</answer>", 0),
        ("<answer>72 or 73</answer>", 0), ("<answer>not 72</answer>", 0), ("<answer>The answer is 73.</answer> 72", 0),
        ("\\boxed{<answer>72</answer> or 73}", 0), ("<answer>72} or {73</answer>", 0), ("<answer>72</answer>, or", 0),
        ("`<answer>72</answer>`", 1), ("`<answer>73</answer>` <answer>72</answer>", 0),
        ("<think><answer>72</answer></think>", 0), ("<answer>72</answer><think>", 0), ("<answer>72</answer></think>73", 0),
        ("<answer>71<answer>72</answer></answer> <answer>71</answer>", 0), ("<answer>\\boxed{72</answer>", 0),
        ("<answer>72</answer> is not the answer", 0), ("<think>a</think><answer>72</answer><think>b</think>\\boxed{73}", 0),
    ],
)  # fmt: skip
def test_an_answer_element_is_an_answer_as_a_box_is(function, text, right):
    assert of(function, text) == right


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("<think>x</think><answer>B</answer>", "B"), ("<answer>b</answer>", "B"), ("<answer>(B) Mars</answer>", "B"),
        ("<answer>The answer is B.</answer>", "B"), ("<answer>\n\\boxed{B}\n</answer>", "B"), ("<answer>B or C</answer>", ""),
        ("<answer>B</answer><answer>C</answer>", ""), ("<answer>B", ""), ("(B) <answer>C</answer>", "C"),
        ("B is not the answer", ""), ("(B) is not the answer", ""), ("The answer is not B", ""), ("The answer is (B), or", ""),
        ("B is the answer", "B"), ("(B), not C", ""), ("The statement \\boxed{B} is incorrect.", "B"),
        ("\\boxed{B} is not the answer", ""), ("\\boxed{B} is the incorrect option", ""),
    ],
)  # fmt: skip
def test_the_chosen_option(text, label):
    assert [of(choice_reward, text, gold) for gold in "BC"] == [label == gold for gold in "BC"]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<answer>a b</answer>", 1), ("<answer>\n```\na b\n```\n</answer>", 1), ("```\ncode\n```\n<answer>a b</answer>", 1),
        ("<answer>the output is a b</answer>", 1), ("```\na b\n```\n<answer>c</answer>", 0), ("<answer>a b", 0),
        ("<answer>a b</answer><answer>c</answer>", 0), ("<answer>a  b</answer>", 0), ("\\boxed{a b} is not the answer", 0),
        ("\\boxed{}: \\boxed{a b}", 1),
    ],
)  # fmt: skip
def test_output_in_an_element(text, right):
    assert of(code_output_reward, text, "a b") == right


def test_reasoning_gym_reads_the_same_elements():
    assert extract_answer("in <answer> </answer> tags: <answer>7</answer>") == "7"
    assert extract_answer("<answer>7</answer><answer>8</answer>") is None
    assert extract_answer("<answer></answer> 7") is None


# Placeholders, empty lines --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", VALUES)
@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("The answer has to stand in \\boxed{}. It is \\boxed{72}", 1), ("use `\\boxed{}`.\n\n\\boxed{72}", 1),
        ("in \\boxed{...}\n\\boxed{72}", 1), ("$\\boxed{72}$, given in \\boxed{} as asked", 1), ("#### 72\n####\n", 1),
        ("\\boxed{\\ldots} \\boxed{\\text{ }} \\boxed{___} \\boxed{?}: \\boxed{72}", 1), ("#### 72 ####", 1),
        ("#### ...\n#### 72", 1), ("####\n72", 1),
        ("\\boxed{}", 0), ("It is 72: \\boxed{}", 0), ("\\boxed{...} \\boxed{72} \\boxed{73}", 0),
        ("\\boxed{answer} \\boxed{72}", 0),
        ("\\boxed{72} \\boxed{", 0), ("\\boxed{-} \\boxed{72}", 0), ("#### 72\n#### 73\n####", 0), ("#### 73\n####\n", 0),
    ],
)  # fmt: skip
def test_an_empty_box_is_no_answer_where_another_one_holds_one(function, text, right):
    assert of(function, text) == right


def test_the_empty_set_is_no_placeholder():
    assert [of(math_reward, f"in \\boxed{{}}: \\boxed{{{text}}}", r"\emptyset") for text in (r"\emptyset", "0")] == [
        1,
        0,
    ]


# Denials --------------------------------------------------------------------------------------------------------------

DENIED = [
    "%s is not the answer", "%s is not the correct answer.", "$%s$ is not right", "%s isn't the answer", "%s is wrong",
    "the answer is not %s", "The answer isn't %s", "it cannot be %s", "rather than %s", "It is 73, not %s.", "not %s but 73",
    "%s? No, 73.", "%s. Wait, that is wrong, it is 73", "%s. That is wrong.", "%s, which is incorrect", "%s (wrong)",
    "I would say %s, but let me check", "%s, or", "neither %s nor 3", "It is false that the answer is %s",
    "**%s** is not our final answer", "\\(%s\\) \\text{ is not the answer}", "A wrong answer: %s", "anything but %s",
    "I doubt the answer is %s", "%s is too big", "%s is clearly not it", "%s does not seem to be the answer",
    "%s\nis not the answer", "$$\n%s\n$$\nis not the answer", "%s must be rejected", "%s is by no means the answer",
    "-%s", "2%s", "%s/2", "%s + 1", "%s^2", "~~%s~~", "\\cancel{%s}", "the answer $\\neq %s$", "<del>%s</del>",
    "%s0", "%sx", "%s - 1", "%s \\times 10", "%s\\cdot 2", "%s:3", "$1 - %s$", "$1 + %s$", "$-\\,%s$", "$-\\left(%s\\right)$",
    "negative %s", "10 * %s", "10 \\cdot %s", "\\sqrt{%s}", "\\frac{%s}{2}", "\\frac{1}{%s}", "2^{%s}", "\\sin %s",
    "\\pm %s", "(3, %s)", "If the answer were %s, then 0 = 1", "Suppose %s. This fails.", "I don't think it is %s",
    "It could be %s, but it is not.", "Some say %s, but they are wrong.",
]  # fmt: skip
CORRECTED = [  # by what stands beside or behind a box
    "%s or 73", "%s, 73", "Either $%s$ or $73$.", "%s; 73", "($%s$, 3)", "%s\n\nActually, it should be 73.",
    "$%s$\n\nWait, I made a mistake.", "%s\nCorrection: 73",
]  # fmt: skip
STATED = [
    "%s", "This is not an integer, so %s", "If not, %s", "x is not 0, so the answer is %s.", "It is not 71 but %s.",
    "%s is not an integer multiple of 5.", "%s, not 71.", "%s and not 71.", "%s. No other solutions exist.", "(%s)",
    "%s. Wait times are long.", "It is wrong to say 71. It is %s.", "I made a mistake before. Now: %s", "- %s",
    "Without a doubt %s", "%s. If you got 36, that is wrong.", "%s is right, and 71 is not the answer.", "x=%s", "1. %s",
    "The answer is none other than %s.", "%s, but let me verify: 70+2=72. Yes.", "This can't be simplified: %s",
    "%s\n\nNot that it matters.", "Hence x is not negative and equals %s", "%s is what was asked for, no more and no less",
    "x $\\neq %s$ is the condition", "Step 3 - %s", "**Step (3)** %s", "* %s", "+ %s", "$2+3=%s$", "$\\left(%s\\right)$", "%s!",
    "{\\large %s}", "%s\\quad\\blacksquare", "%s, 3 times as many", "%s or 72.0", "%s, or $\\frac{144}{2}$.",
    "I don't think there is more to do, so %s", "If you add, it is %s", "%s\n\nActually, this holds for all n.",
    "minus two gives %s",
]  # fmt: skip


@pytest.mark.parametrize("mark", [BOX, TAG], ids=["box", "element"])
@pytest.mark.parametrize("function", VALUES)
def test_what_the_text_denies_is_no_answer_and_what_it_states_is_one(function, mark):
    assert [text for text in DENIED if of(function, text % mark)] == []
    assert [text for text in STATED if not of(function, text % mark)] == []


@pytest.mark.parametrize("function", VALUES)
def test_what_is_said_beside_a_box_counts(function):
    assert [text for text in CORRECTED if of(function, text % BOX)] == []


@pytest.mark.parametrize(
    ("gold", "text", "right"),
    [
        (r"0.25\%", r"\boxed{0.25}\%", 1), ("0.25", r"\boxed{0.25}\%", 0), (r"25\%", r"$\boxed{25}\%$", 1),
        (r"90^\circ", r"\boxed{90}^\circ", 1), (r"90^\circ", r"$\boxed{90}^{\circ}$", 1), (r"\pi", r"\boxed{\pi}^\circ", 0),
        (r"5\text{ cm}", r"\boxed{5}\text{ cm}", 1), (r"5\text{ m}", r"\boxed{5}\text{ cm}", 0),
        ("5", r"\boxed{5}\text{ cm}", 1),
        (r"5\text{ cm}^2", r"\boxed{5}\ \text{cm}^2", 1), (r"5\text{ cm}", r"\boxed{5}\ \text{cm}^2", 0),
        ("5000000", "$\\boxed{5}$ million", 1), ("5", "$\\boxed{5}$ million", 0), ("5", r"\boxed{5}\text{k}", 0),
        (r"\text{(C)}", r"\boxed{C} - 5 km", 1),
        ("5", r"\boxed{5}\text{ apples}", 1), ("5", r"\boxed{5}\text{ since }x=5", 1),
    ],
)  # fmt: skip
def test_a_sign_a_scale_and_a_unit_behind_a_box_belong_to_it(gold, text, right):
    assert of(math_reward, text, gold) == right


@pytest.mark.parametrize(
    "text", ["72 is not the answer", "The answer isn't 72", "#### 72 is not the answer", "It is no longer 72"]
)
def test_a_bare_number_can_be_denied_too(text):
    assert [of(function, text) for function in VALUES] == [0, 0, 0]


def test_many_boxes_state_nothing_and_cost_nothing():
    assert of(math_reward, BOX * 60) == 1
    assert of(math_reward, BOX * 100_000) == of(numeric_reward, TAG * 100_000) == 0
    assert of(math_reward, "\\boxed{" + "~" * 1_000_000 + "} \\boxed{" + "(" * 1_000_000 + "} is wrong") == 0


# Thoughts that the prompt began ---------------------------------------------------------------------------------------

CUT, WHOLE = "I would say \\boxed{72}", "70 and 2.\n</think>\n\\boxed{72}"
SOURCE = json.dumps({"dataset": "chain_sum", "seed": 1, "size": 4, "config": {}, "index": 0})
FUNCTIONS = [
    (math_reward, "\\boxed{72}", {"answer": "72"}),
    (strict_math_reward, "\\boxed{72}", {"answer": "72"}),
    (lambda *args, **kwargs: asyncio.run(async_math_reward(*args, **kwargs)), "\\boxed{72}", {"answer": "72"}),
    (numeric_reward, "it is 72", {"answer": "72"}),
    (choice_reward, "(B)", {"answer": "B"}),
    (code_output_reward, "72", {"answer": "72"}),
]


def columns(of_one, number):
    return {name: [value] * number for name, value in of_one.items()}


@pytest.mark.parametrize(("function", "said", "gold"), FUNCTIONS)
def test_a_thought_that_was_begun_and_cut_has_no_answer(function, said, gold):
    messages = [[{"role": "user", "content": f"70+2? {i}"}] for i in range(3)]
    texts = [said, f"so {said}</think>{said}", f"<think>{said}"]
    replies = [[{"role": "assistant", "content": text}] for text in texts]
    assert function(messages, replies, **columns(gold, 3)) == [1.0, 1.0, 0.0]
    with thinking_begun(messages, [True] * 3):
        assert function(messages, replies, **columns(gold, 3)) == [0.0, 1.0, 0.0]
        assert function(messages[1:], replies[1:], **columns(gold, 2)) == [1.0, 0.0], "a part of the batch"
        assert function(None, replies, **columns(gold, 3)) == [0.0, 1.0, 0.0]
        apart = [[{"role": "assistant", "content": said, "reasoning_content": "70 and 2"}]]
        assert function(messages[:1], apart, **columns(gold, 1)) == [1.0], "taken apart by the tokenizer"
    with thinking_begun(messages, [True, False, False]):  # by row: found by the prompt, in any order
        assert function(messages[::-1], [replies[0]] * 3, **columns(gold, 3)) == [1.0, 1.0, 0.0]
    prompts = ["70+2? <think>\n", "70+2?"]
    assert function(prompts, texts[:1] * 2, **columns(gold, 2)) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("<thinking>", "</thinking>"), ("<THINK>", "</THINK>"), ("<reasoning>", "</reasoning>"), ("[THINK]", "[/THINK]"),
     ("◁think▷", "◁/think▷"), ("<|begin_of_thought|>", "<|end_of_thought|>")],
)  # fmt: skip
@pytest.mark.parametrize(("function", "said", "gold"), FUNCTIONS)
def test_a_thought_between_other_tags_is_one(function, said, gold, opening, closing):
    texts = [f"{opening}{said}", f"{opening}hm{closing}{said}", f"{opening}{said}{closing}"]
    assert function([""] * 3, texts, **columns(gold, 3)) == [0.0, 1.0, 0.0]
    assert function([f"q\n{opening}\n"] * 2, [said, f"hm{closing}{said}"], **columns(gold, 2)) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("prompt", "begun"),
    [
        ("q <think>", 1), ("q\nAssistant: <think>\n", 1), ("q\nAssistant: <think>\nLet me see.", 1), ("q\n<think>\nWell", 1),
        ("Begin with <think>.", 0), ("Think in <think> </think> tags.", 0), ("<think>a</think>b\nAssistant: <think>", 1),
        ("q<think>\n\n</think>\n\n", 0), ("<think> q", 0), ("Use <think> and then answer", 0), ("", 0),
    ],
)  # fmt: skip
def test_what_a_text_prompt_began(prompt, begun):
    assert math_reward([prompt], [BOX], ["72"]) == [1.0 - begun]
    assert format_reward([prompt], ["a</think>b"]) == [float(begun)]


def test_a_message_that_is_to_be_continued_shows_what_it_began():
    prompt = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<think>\n"}]
    assert math_reward([prompt], [[{"role": "assistant", "content": BOX}]], ["72"]) == [0.0]


def test_form_with_a_template_that_is_known_and_one_that_is_not():
    prompts, replies = [[{"role": "user", "content": "q"}]], [[{"role": "assistant", "content": WHOLE}]]
    assert format_reward(prompts, replies) == [1.0]  # the benefit of the doubt
    for begun in (True, False):
        with thinking_begun(prompts, [begun]):
            assert format_reward(prompts, replies) == [float(begun)]
            assert format_reward(prompts, [[{"role": "assistant", "content": CUT}]]) == [0.0]


def test_what_was_told_is_forgotten_and_does_not_reach_other_threads():
    messages = [[{"role": "user", "content": "q"}]]
    with thinking_begun(messages, [True]), ThreadPoolExecutor(1) as pool:
        assert pool.submit(math_reward, messages, [CUT], ["72"]).result() == [1.0]
    assert math_reward(messages, [CUT], ["72"]) == [1.0]


def test_reasoning_gym_reward_is_told_too():
    pytest.importorskip("reasoning_gym")
    messages = [[{"role": "user", "content": "q"}]]
    with thinking_begun(messages, [True]):
        assert reasoning_gym_reward(messages, ["<answer>1</answer>"], ["1"], [SOURCE]) == [0.0]
