"""Requests as token ids: the joint encoding on every request of a suite, for every kind of tokenizer, at little cost."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tokenizers_by_kind as kinds
from tokenizers import Tokenizer, models, pre_tokenizers

from olmes_monitor.errors import SetupError
from olmes_monitor.scoring.encode import Encoder
from olmes_monitor.scoring.seams import VISIBLE, _expression, last_seam, safe_before_space
from olmes_monitor.suite import FORMULATIONS, LABELS, Question, Task

SKY = Task(
    "sky",
    [Question("1", "Is the sky blue", ("yes", "no", "at  night"), 0)],
    [Question("s", "Is 2 odd?", ("y", "n"), 1)],
)
PROVED = ["neox", "smollm2", "byte_level", "llama3", "metaspace", "unigram", "spaced_token"]


def requests_of(task, formulation):
    """The texts in the order of EncodedTask: those of the choices, then the unconditional ones."""
    groups = [(question, task.requests(question, formulation)) for question in task.questions]
    asked = [request for question, group in groups for request in group[: len(question.choices)]]
    return asked + [request for question, group in groups for request in group[len(question.choices) :]]


def whole(**changes):
    """An encoder that never has to shorten a prompt at all."""
    encoder = Encoder(**changes)
    encoder.max_length = 10**9
    return encoder


@pytest.mark.parametrize("kind", [*PROVED, "merging"])
def test_every_request_of_the_quick_suite_equals_its_joint_encoding(kind):
    tokenizer = getattr(kinds, kind)()
    encoder = whole(tokenizer=tokenizer, bos=False)
    compared = characters = spanning = 0
    for task in kinds.quick().tasks.values():
        for formulation in FORMULATIONS:
            encoded = encoder.encode_task(task, formulation)
            requests = requests_of(task, formulation)
            for request, found in zip(requests, [*encoded.requests, *encoded.unconditional], strict=True):
                ids, start = kinds.naive(tokenizer, request)
                assert (found.ids.tolist(), found.start) == (ids, start), (task.name, formulation, request)
                compared += 1
                characters += len(request.context + request.continuation)
            spanning += encoded.spanning
    print(
        f"{kind}: {compared} requests compared, {spanning} spanning, {encoder.characters / characters:.3f} of the text encoded"
    )
    assert compared == 8100
    assert (spanning > 0) == (kind in ("merging", "spaced_token"))
    if kind in PROVED:  # each distinct piece once: what makes a suite ready in seconds
        assert encoder.characters < characters / 9


def test_a_tokenizer_of_which_nothing_is_proved_is_given_whole_texts():
    assert Encoder(kinds.merging())._safe == frozenset()
    assert Encoder(kinds.byte_level())._safe == VISIBLE


def test_a_wrong_proof_is_found_out(monkeypatch):
    monkeypatch.setattr("olmes_monitor.scoring.tokens.safe_before_space", lambda _: VISIBLE)
    task = Task("t", [Question("1", "x", ("C", "D"), 0)])
    encoder = Encoder(kinds.merging())
    encoded = encoder.encode_task(task, "cf")
    assert encoder._safe == frozenset()
    assert [request.ids.tolist() for request in encoded.requests] == [
        kinds.naive(kinds.merging(), request)[0] for request in requests_of(task, "cf")
    ]


@pytest.mark.parametrize(
    ("pattern", "unsafe", "splits"),
    [
        (kinds.LLAMA3, "", True),
        (r"\p{N}{1,3}", "", False),
        (r"\s+(?!\S)", "", False),
        (r"[a-c ]+|\s", "abc", True),
        (r"\d+ \d+|\s+", "0123456789", True),
        (r"(?:x|y)? ?z|\s+", "xy", True),
    ],
)
def test_which_expressions_separate_a_character_from_the_space_after_it(pattern, unsafe, splits):
    assert _expression(pattern) == (VISIBLE - set(unsafe), splits)


@pytest.mark.parametrize(
    "pattern", [r"(?<=a) b", r"\bfoo", r"^a", ".+", r"(?:a| b)+|\s+", r"a(?=b)", r"[^(\s|[.])]+", "(a"]
)
def test_an_expression_that_is_not_understood_gives_no_seams(pattern):
    from tokenizers import Regex

    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.ByteLevel(False)
    if pattern != "(a":  # refused by tokenizers itself
        split = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), split])
        assert safe_before_space(tokenizer.to_str()) == frozenset()
        tokenizer.pre_tokenizer = split
        assert safe_before_space(tokenizer.to_str()) == frozenset()
    else:
        with pytest.raises(Exception, match=r"\(a"):
            _expression(pattern)


def test_last_seam():
    assert last_seam("a b. c", 6, frozenset("ab")) == 1
    assert last_seam("a b. c", 6, VISIBLE) == 4
    assert last_seam("a  b", 4, VISIBLE) == 1
    assert last_seam(" ab", 3, VISIBLE) == 0


@pytest.mark.parametrize("kind", ["byte_level", "metaspace", "unigram", "llama3"])
def test_labels_are_encoded_where_they_stand(kind):
    """A SentencePiece tokenizer gives " A" by itself two tokens; after a prompt it has one, and that one is asked for."""
    tokenizer = getattr(kinds, kind)()
    encoded = Encoder(tokenizer).encode_task(SKY, "mcf")
    for label, request in zip(LABELS, encoded.requests, strict=False):
        context, asked = request.ids[: request.start].tolist(), request.ids[request.start :].tolist()
        assert len(asked) == 1
        assert tokenizer.decode([*context, *asked]).endswith(f"Answer: {label}")
        assert tokenizer.decode(context, skip_special_tokens=True).endswith("Answer:")


def test_a_label_of_several_tokens_is_scored_in_full():
    encoded = Encoder(kinds.Plain(), bos=False).encode_task(SKY, "mcf")
    assert [bytes(request.ids[request.start :].tolist()) for request in encoded.requests] == [b" A", b" B", b" C"]


@pytest.mark.parametrize("as_transformers", [False, True])
def test_exactly_one_bos_and_no_eos(as_transformers):
    tokenizer = kinds.metaspace()
    tokenizer.post_processor = kinds.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    given = kinds.fast(tokenizer, bos_token="<s>", eos_token="</s>") if as_transformers else tokenizer
    with_text = Task("t", [Question("1", "x", ("a", "b"), 0)], template=template_of("<s>Q: {stem}"))
    for task in (SKY, with_text):
        for formulation in FORMULATIONS:
            for request in Encoder(given).encode_task(task, formulation).requests:
                assert request.ids[0] == 1
                assert (request.ids == 1).sum() == 1
                assert (request.ids == 2).sum() == 0
    assert Encoder(given, bos=False).encode_task(SKY, "cf").requests[0].ids[0] != 1
    # A BOS that the text itself spells stays with bos=False: it is text.
    assert (Encoder(given, bos=False).encode_task(with_text, "cf").requests[0].ids == 1).sum() == 1


def template_of(cf):
    from olmes_monitor.suite import Template

    return Template(cf=cf, mcf=f"{cf}\n{{options}}\nAnswer:")


def test_bos_auto_is_what_the_tokenizer_itself_adds():
    bare = kinds.fast(kinds.byte_level(), bos_token="<s>")
    assert Encoder(bare).bos_id is None  # it has a BOS and adds none: GPT-NeoX, SmolLM2
    assert Encoder(bare, bos=True).bos_id == 1
    assert Encoder(kinds.llama3()).bos_id == 1
    assert Encoder(kinds.llama3(), bos=False).bos_id is None
    with pytest.raises(SetupError, match="no bos_token"):
        Encoder(kinds.byte_level(), bos=True)
    with pytest.raises(SetupError, match='takes "auto", True or False'):
        Encoder(bare, bos="yes")


def test_two_tokens_in_front_of_every_text_are_both_kept():
    tokenizer = kinds.byte_level()
    tokenizer.post_processor = kinds.processors.TemplateProcessing(
        single="<unk> <s> $A", special_tokens=[("<unk>", 0), ("<s>", 1)]
    )
    request = Encoder(tokenizer).encode_task(SKY, "cf").requests[0]
    assert request.ids[:2].tolist() == [0, 1]
    assert 0 not in request.ids[2:]


@pytest.mark.parametrize(("before", "after"), [((), ()), ((300,), ()), ((300, 301), (302,)), ((), (302,))])
def test_what_a_hand_written_tokenizer_puts_around_a_text_is_taken_off(before, after):
    encoded = Encoder(kinds.Plain(before, after)).encode_task(SKY, "cf")
    for request, text in zip(encoded.requests, requests_of(SKY, "cf"), strict=True):
        assert request.ids.tolist() == [*before, *text.context.encode(), *text.continuation.encode()]
        assert bytes(request.ids[request.start :].tolist()).decode() == text.continuation


def test_a_tiktoken_like_object_takes_special_strings_as_text():
    class Tiktoken(kinds.Plain):
        def encode(self, text):
            raise ValueError("disallowed special token")

        def encode_ordinary(self, text):
            return list(text.encode())

    task = Task("t", [Question("1", "<|endoftext|>?", ("a", "b"), 0)])
    assert (
        bytes(Encoder(Tiktoken()).encode_task(task, "cf").requests[1].ids.tolist())
        == b"Question: <|endoftext|>?\nAnswer: b"
    )


def test_a_slow_transformers_tokenizer_gives_what_its_fast_one_gives():
    slow = pytest.importorskip("transformers").ByT5Tokenizer()
    assert not slow.is_fast
    request = Encoder(slow).encode_task(SKY, "cf").requests[0]
    assert slow.decode(request.ids[request.start :]) == " yes"
    assert slow.eos_token_id not in request.ids


@pytest.mark.parametrize("as_transformers", [False, True])
def test_the_users_tokenizer_is_unchanged_and_its_settings_do_not_matter(as_transformers):
    """Truncation and padding, left on by a data loader, must neither cut our prompts nor be switched off for it."""
    plain = kinds.llama3()
    tokenizer = kinds.llama3()
    given = kinds.fast(tokenizer, bos_token="<s>") if as_transformers else tokenizer
    backend = given.backend_tokenizer if as_transformers else given
    assert getattr(given, "pad_token", None) is None
    backend.enable_truncation(8)
    backend.enable_padding(length=16)
    before = backend.to_str()
    encoded = Encoder(given).encode_task(SKY, "cf")
    assert backend.to_str() == before
    expected = Encoder(plain).encode_task(SKY, "cf")
    assert [r.ids.tolist() for r in encoded.requests] == [r.ids.tolist() for r in expected.requests]


def test_a_later_change_of_the_users_tokenizer_changes_nothing():
    tokenizer = kinds.byte_level()
    encoder = Encoder(tokenizer)
    before = encoder.encode_task(SKY, "cf")
    tokenizer.enable_truncation(2)
    tokenizer.add_tokens(["Question"])
    assert all(
        np.array_equal(a.ids, b.ids)
        for a, b in zip(before.requests, encoder.encode_task(SKY, "cf").requests, strict=True)
    )


def test_a_subclass_with_an_encoding_of_its_own_is_believed():
    fast = kinds.fast(kinds.byte_level())

    class Lower(type(fast)):
        def __call__(self, text, **options):
            return super().__call__([each.lower() for each in text], **options)

    lower = copy.copy(fast)
    lower.__class__ = Lower
    request = Encoder(lower).encode_task(SKY, "cf").requests[0]
    assert fast.decode(request.ids).startswith("question: is 2 odd?")


def test_shots_are_dropped_whole_from_the_left_then_the_prompt_is_cut():
    shots = [Question(f"s{i}", f"shot {i}?", ("yes", "no"), 0) for i in range(5)]
    task = Task("t", [Question("a", "short?", ("y", "n"), 0), Question("b", "long" * 20 + "?", ("y", "n"), 1)], shots)
    full = whole(tokenizer=kinds.Plain()).encode_task(task, "cf")
    room = len(full.requests[0].ids) - 1
    exact = Encoder(kinds.Plain(), max_length=room).encode_task(task, "cf")
    assert np.array_equal(exact.requests[0].ids, full.requests[0].ids)  # the last token is never an input
    assert exact.shots_dropped == 1
    small = Encoder(kinds.Plain((300,)), max_length=60).encode_task(task, "cf")
    assert (small.shots_dropped, small.cut) == (2, 1)
    fitting, cut = (bytes(small.requests[i].ids[1:].tolist()).decode() for i in (0, 2))
    assert fitting == "Question: shot 4?\nAnswer: yes\n\nQuestion: short?\nAnswer: y"
    assert cut.endswith("long?\nAnswer: y")
    assert len(small.requests[2].ids) == 61
    assert small.requests[2].ids[0] == 300
    assert bytes(small.requests[2].ids[small.requests[2].start :].tolist()) == b" y"


def test_an_answer_longer_than_the_model_is_refused_with_its_question_named():
    task = Task("t", [Question("q7", "x", ("y" * 50, "n"), 0)])
    with pytest.raises(SetupError, match=r"t cf, question 'q7': the answer alone has 51 tokens, the model takes 20"):
        Encoder(kinds.Plain(), max_length=20).encode_task(task, "cf")


def test_nothing_before_a_continuation_is_refused():
    template = template_of("{stem}")
    task = Task("t", [Question("1", "", ("a", "b"), 0)], template=template)
    with pytest.raises(SetupError, match="pass bos=True"):
        Encoder(kinds.Plain()).encode_task(task, "cf")
    assert Encoder(kinds.Plain((9,))).encode_task(task, "cf").requests[0].start == 1


def test_white_space_at_the_end_of_a_context_belongs_to_the_continuation():
    class Loose(Task):
        def requests(self, question, formulation, shots=None):
            return [
                type(r)(r.context + " ", r.continuation.strip()) for r in super().requests(question, formulation, shots)
            ]

    strict = Task("t", SKY.questions)
    for tokenizer in (kinds.byte_level(), kinds.Plain()):
        expected, found = (
            Encoder(tokenizer).encode_task(task, "cf").requests for task in (strict, Loose("t", SKY.questions))
        )
        assert [(r.ids.tolist(), r.start) for r in found] == [(r.ids.tolist(), r.start) for r in expected]


@pytest.mark.parametrize("tokenizer", [None, "gpt2", object(), len])
def test_what_is_no_tokenizer_is_refused(tokenizer):
    with pytest.raises(SetupError, match="has no encode"):
        Encoder(tokenizer)


def test_a_tokenizer_that_cannot_encode_is_refused_in_one_line():
    class Broken:
        def encode(self, text):
            raise RuntimeError("no vocabulary")

    with pytest.raises(SetupError, match=r"\(Broken\) cannot encode a text: RuntimeError: no vocabulary"):
        Encoder(Broken())
    with pytest.raises(SetupError, match="max_length is 1"):
        Encoder(kinds.Plain(), max_length=1)
