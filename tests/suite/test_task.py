"""Own tasks: rendering with the default template, and what is refused, each time with the mend in the message."""

from __future__ import annotations

import pickle
import re

import pytest
from official_wheel import own

from olmes_monitor.errors import SetupError
from olmes_monitor.suite import Question, Request, Task, Template

SKY = Question("sky", "What color is the sky?", ("blue", "green"), 0)
SEA = Question("sea", "What is in the sea?", ("fish", "cars", "{stem}"), 1)


def test_default_template_in_both_formulations():
    task = Task("own", [SEA], shots=[SKY])
    shot = "Question: What color is the sky?\nAnswer: blue\n\n"
    assert task.requests(SEA, "cf") == [
        Request(shot + "Question: What is in the sea?\nAnswer:", f" {choice}") for choice in SEA.choices
    ]
    shot = "Question: What color is the sky?\n A. blue\n B. green\nAnswer: A\n\n"
    asked = "Question: What is in the sea?\n A. fish\n B. cars\n C. {stem}\nAnswer:"
    assert task.requests(SEA, "mcf") == [Request(shot + asked, f" {label}") for label in "ABC"]


def test_pmi_adds_one_unconditional_request_per_choice_in_cf_only():
    task = Task("own", [SEA], normalization="pmi")
    assert task.unconditional
    assert task.requests(SEA, "cf")[3:] == [Request("Answer:", f" {choice}") for choice in SEA.choices]
    assert len(task.requests(SEA, "mcf")) == 3


def test_fill_in_questions_have_a_context_per_choice_and_a_shared_ending():
    task = Task("own", [Question("1", "The _ barks.", ("dog", "cat"), 0)], template=Template("{stem}", blank="___"))
    assert task.requests(task.questions[0], "cf") == [Request("The dog", " barks."), Request("The cat", " barks.")]
    assert task.requests(task.questions[0], "mcf")[0].context.startswith("Question: The ___ barks.\n A. dog")


def test_fewer_shots_are_dropped_from_the_left():
    shots = [Question(f"s{i}", f"shot {i}", ("yes", "no"), 0) for i in range(5)]
    task = Task("own", [SEA], shots)
    for keep in (0, 1, 3, 5, 9):
        context = task.requests(SEA, "cf", shots=keep)[0].context
        assert re.findall(r"shot (\d)", context) == [str(i) for i in range(5)][max(0, 5 - keep) :]
        assert context.endswith("Question: What is in the sea?\nAnswer:")
    with pytest.raises(SetupError, match="0 or more"):
        task.requests(SEA, "cf", shots=-1)


def test_shots_by_subject_and_a_preamble_that_names_it():
    questions = [
        Question("a", "A?", ("x", "y"), 0, subject="high_art"),
        Question("b", "B?", ("x", "y"), 0, subject="law"),
    ]
    shots = {"high_art": [Question("s", "art shot", ("x", "y"), 1)], "law": []}
    task = Task("own", questions, shots, Template(preamble="About {subject}.\n\n"))
    assert task.subjects == ("high_art", "law")
    assert task.max_shots == 1
    assert task.requests(questions[0], "cf")[0].context == (
        "About high art.\n\nQuestion: art shot\nAnswer: y\n\nQuestion: A?\nAnswer:"
    )
    assert task.requests(questions[1], "cf")[0].context == "About law.\n\nQuestion: B?\nAnswer:"
    assert task.requests(questions[0], "cf", shots=0)[0].context == "About high art.\n\nQuestion: A?\nAnswer:"


def test_a_shot_prefix_is_rendered_once(monkeypatch):
    calls = []
    render = Template.prefix
    monkeypatch.setattr(Template, "prefix", lambda *args: calls.append(args) or render(*args))
    task = own(count=20, shots=[SKY])
    for question in task.questions:
        task.requests(question, "cf")
        task.requests(question, "mcf")
    assert len(calls) == 2


def test_a_task_survives_pickling_and_lists_are_copied():
    questions = [SKY]
    task = Task("own", questions, shots=[SEA])
    questions.append(SEA)
    assert len(task.questions) == 1
    copy = pickle.loads(pickle.dumps(task))
    assert copy == task
    assert copy.requests(SKY, "mcf") == task.requests(SKY, "mcf")
    assert repr(task) == "Task('own', 1 questions, 1 shots, normalization='char')"


@pytest.mark.parametrize("name", ["My Task", "arc-easy", "", "a/b", "Ünder", "x\n"])
def test_a_name_that_cannot_be_a_metric_key_is_refused(name):
    with pytest.raises(SetupError, match="lower-case letters"):
        own(name)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "average"}, "olmes/cf/average"),
        ({"questions": []}, "has no questions"),
        ({"questions": [SKY, SEA, SKY]}, "1 question ids occur more than once, first 'sky'"),
        ({"normalization": "chars"}, "one of none, token, char, byte, pmi"),
        ({"shots": {"law": [SEA]}}, "subject '' has no shots"),
        ({"questions": [Question("b", "?", ("x", " "), 0)]}, "question 'b': a choice is blank"),
        ({"questions": [Question("p", "?", ("x", "y"), 0, passage="P")]}, r"the template has no \{passage\}"),
        ({"template": Template("{passage} {stem}")}, "the question has none"),
        ({"template": Template("{stem}", blank="___")}, "needs exactly one '_', this one has 0"),
        (
            {"questions": [Question("e", "end _", ("x", "y"), 0)], "template": Template("{stem}", blank="_")},
            "nothing follows",
        ),
        ({"normalization": "pmi", "template": Template("{stem}", blank="___")}, "pmi does not apply"),
    ],
)
def test_what_could_not_be_scored_is_refused(arguments, message):
    with pytest.raises(SetupError, match=message):
        Task(**{"name": "own", "questions": [SKY], **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cf": "Q: {question}"}, r"unknown placeholder \{question\}; it knows \{passage\}, \{stem\}, \{subject\}"),
        ({"cf": "Q: {}"}, "unknown placeholder"),
        ({"cf": "Q: {stem"}, "is no format string"),
        ({"cf": "Answer:"}, r"lacks the placeholder \{stem\}"),
        ({"mcf": "{stem}\nAnswer:"}, r"lacks the placeholder \{options\}"),
        ({"cf": "{options}{stem}"}, r"unknown placeholder \{options\}"),
        ({"cf": "{stem}\nAnswer: "}, "ends in white space"),
        ({"preamble": "{stem}"}, "Template.preamble"),
    ],
)
def test_a_template_that_cannot_render_is_refused(arguments, message):
    with pytest.raises(SetupError, match=message):
        Template(**arguments)


def test_an_unknown_formulation_is_refused():
    with pytest.raises(SetupError, match="one of cf, mcf"):
        own().requests(SKY, "rc")
