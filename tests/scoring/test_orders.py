"""MCF in every cyclic order of the choices, against a naive loop over prompts whose option lines are written anew."""

import dataclasses

import numpy as np
import pytest
import torch
from parts import make_llama, make_task
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from olmes_monitor import Point, Question, Suite, Task, load_run, score
from olmes_monitor.record import Recorder
from olmes_monitor.record.evaluation import SCORES_COLUMNS
from olmes_monitor.scoring.pack import trie_nodes
from olmes_monitor.scoring.score import Scorer
from olmes_monitor.suite.question import LABELS
from olmes_monitor.suite.templates import Template


def by_subject(name: str, questions: int) -> Task:
    """Like MMLU: each subject has its own shots and stands in the preamble. Four choices each, two of them equal."""
    plain = make_task(name, questions, seed=2)
    subjects = ("astronomy", "virology")

    def four(i: int, question: Question) -> Question:
        choices = ("red", "green", "red", f"colour {i}")
        return dataclasses.replace(question, choices=choices, gold=i % 4, subject=subjects[i % 2])

    shots = {subject: [four(i, shot) for i, shot in enumerate(plain.shots)] for subject in subjects}
    asked = [four(i, question) for i, question in enumerate(plain.questions)]
    return Task(name, asked, shots, Template(preamble="About {subject}.\n\n"))


@pytest.fixture(scope="module")
def mixed() -> Suite:
    """Questions of 2 to 5 choices, of 2 choices only, and of 4 in subjects."""
    boxes = make_task("boxes", 8, seed=1)
    assert {len(question.choices) for question in boxes.questions} == {2, 3, 4, 5}
    binary = [dataclasses.replace(q, choices=q.choices[:2], gold=i % 2) for i, q in enumerate(boxes.questions[:3])]
    return Suite("mixed", [Task("binary", binary, boxes.shots), boxes, by_subject("fields", 4)])


def naive(model, tokenizer, task, shift):
    """Per choice, flat: ln p of the label that stands for it in the order of this shift, None without that order."""
    found = []
    for question in task.questions:
        n, context = len(question.choices), task.requests(question, "mcf")[0].context
        if shift >= n:
            found += [None] * n
            continue
        lines = [f" {label}. {text}" for label, text in zip(LABELS, question.choices, strict=False)]
        ending = "\n".join(lines) + "\nAnswer:"
        assert context.endswith(ending)
        moved = [f" {LABELS[j]}. {question.choices[(j + shift) % n]}" for j in range(n)]
        context = context.removesuffix(ending) + "\n".join(moved) + "\nAnswer:"
        prompts = [tokenizer(f"{context} {label}", add_special_tokens=False)["input_ids"] for label in LABELS[:n]]
        assert len({tuple(ids[:-1]) for ids in prompts}) == 1
        with torch.no_grad():
            logp = model(torch.tensor([prompts[0][:-1]])).logits[0, -1].log_softmax(-1)
        labels = {(j + shift) % n: ids[-1] for j, ids in enumerate(prompts)}
        found += [logp[labels[choice]].double().item() for choice in range(n)]
    return found


@pytest.fixture(scope="module")
def truth(mixed, tokenizer):
    """(task, shift) → the naive loop's values."""
    model = make_llama().eval()
    return {
        (name, shift): naive(model, tokenizer, task, shift) for name, task in mixed.tasks.items() for shift in range(5)
    }


@pytest.mark.parametrize("batch_tokens", [64, 100_000])
@pytest.mark.parametrize("path", ["plain", "packed"])
def test_every_order_equals_the_naive_loop(mixed, tokenizer, llama, truth, batch_tokens, path):
    evaluation = score(llama, tokenizer, mixed, path=path, batch_tokens=batch_tokens, permutations="cyclic")
    assert evaluation.settings["path"] == path
    assert evaluation.settings["permutations"] == "cyclic"
    for (name, shift), expected in truth.items():
        rows = evaluation.scores.filter(np.array(evaluation.scores["task"].to_pylist()) == name)
        column = rows[f"mcf_shift{shift}" if shift else "mcf"].to_pylist()
        assert [value is None for value in column] == [value is None for value in expected]
        np.testing.assert_allclose(np.array(column, dtype=float), np.array(expected, dtype=float), atol=1e-5, rtol=0)


def test_what_was_asked_without_the_option_is_unchanged_by_it(mixed, tokenizer, llama):
    plain, cyclic = (Scorer(llama, tokenizer, mixed, permutations=kind) for kind in ("none", "cyclic"))
    before, after = plain.evaluate(Point(0)), cyclic.evaluate(Point(0))
    shifts = [f"mcf_shift{shift}" for shift in range(1, 5)]
    assert before.scores.column_names == [name for name in after.scores.column_names if name not in shifts]
    assert after.scores.column_names[-4:] == shifts
    assert {*before.scores.column_names, "mcf_shift<k>"} == set(SCORES_COLUMNS)
    assert after.fingerprint == before.fingerprint
    assert after.metrics == pytest.approx(before.metrics, abs=1e-6)
    assert not any("cyclic" in facts for facts in before.tasks.values())
    choices = [len(question.choices) for task in mixed.tasks.values() for question in task.questions]
    assert cyclic.requests - plain.requests == sum(n * (n - 1) for n in choices)
    # The default asks for nothing more.
    assert Scorer(llama, tokenizer, mixed).tokens == plain.tokens


def test_the_orders_share_the_shots_and_each_stem(mixed, tokenizer, llama):
    plain, cyclic = (
        Scorer(llama, tokenizer, mixed, formulations=("mcf",), path="packed", batch_tokens=10**6, permutations=kind)
        for kind in ("none", "cyclic")
    )
    assert cyclic.tokens == sum(trie_nodes(job.requests) for job in cyclic.jobs)
    assert cyclic.tokens < 2 * plain.tokens  # though there are 53 prompts for 15
    assert all(job.encoded.shots_dropped == 0 for job in cyclic.jobs)


def test_the_record_brings_back_every_order_and_measure(mixed, tokenizer, llama, tmp_path):
    evaluation = score(llama, tokenizer, mixed, formulations=("mcf",), permutations="cyclic")
    Recorder(tmp_path).write(evaluation)
    run = load_run(tmp_path)
    assert run.scores(0).equals(evaluation.scores)
    assert run.evaluations[0].tasks == evaluation.tasks
    for name, facts in evaluation.tasks.items():
        assert facts["encoding_cyclic"] == {"spanning": 0, "shots_dropped": 0, "cut": 0}
        assert facts["cyclic"]["accuracy"][0] == facts["mcf"]
        assert facts["cyclic"]["debiased"] == pytest.approx(facts["mcf"] + facts["cyclic"]["gain"])
        assert len(facts["cyclic"]["questions"]) == max(len(q.choices) for q in mixed.tasks[name].questions)


class LikesA(nn.Module):
    """Knows that the answer is "yes", which raises its label's logit by 1; likes label A by 3."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        super().__init__()
        self.head = nn.Parameter(torch.zeros(len(vocabulary)))
        with torch.no_grad():
            self.head[vocabulary["A"]] = 3.0
        self.yes, self.dot = vocabulary["yes"], vocabulary["."]

    def forward(self, ids):
        logits = self.head.repeat(*ids.shape, 1)
        for row, tokens in enumerate(ids.tolist()):
            for place in range(2, len(tokens)):  # "B . yes" came before this place
                if tokens[place] == self.yes and tokens[place - 1] == self.dot:
                    logits[row, place:, tokens[place - 2]] += 1.0
        return logits


def test_debiasing_finds_what_a_model_knows_that_always_says_a():
    """Gold is A in a tenth of the questions, D in half of them: the model scores that and spreads over the rest."""
    gold = [0] + [1] * 2 + [2] * 2 + [3] * 5
    questions = [
        Question(f"q{i}", "which", tuple("yes" if choice == right else "no" for choice in range(4)), right)
        for i, right in enumerate(gold)
    ]
    words = ["A", "B", "C", "D", ".", ":", "yes", "no", "which", "Question", "Answer", "?"]
    vocabulary = {word: id for id, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    task = Task("yes", questions)
    evaluation = score(LikesA(vocabulary), tokenizer, Suite("one", [task]), permutations="cyclic")
    facts = evaluation.tasks["yes"]
    assert facts["mcf"] == 0.1
    assert facts["cyclic"]["accuracy"] == [0.1, 0.2, 0.2, 0.5]
    assert facts["cyclic"]["spread"] == pytest.approx(0.4)
    assert (facts["cyclic"]["debiased"], facts["cyclic"]["consistent"]) == (1.0, 0.0)
