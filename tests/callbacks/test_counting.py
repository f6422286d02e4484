"""Where training stands, in tokens, in both real trainers: whatever the batches look like."""

import itertools

import lightning.pytorch as pl
import pytest
import torch
from parts import make_llama, make_task, make_tokenizer
from ranks import run_ranks
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler
from transformers import Trainer, TrainingArguments

from olmes_monitor import Monitor, OLMESCallback, Suite, load_run

SUITE = Suite("tiny", [make_task("boxes", 2)])
TOKENIZER = make_tokenizer(SUITE)
TOKENIZER.add_special_tokens({"pad_token": "<pad>"})
PAD = TOKENIZER.pad_token_id


def collate(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [PAD] * (longest - len(row["input_ids"])) for row in rows])
    batch = {"input_ids": ids, "labels": ids}
    if "mask" in rows[0]:
        batch["attention_mask"] = (ids != PAD).long()
    if "packed" in rows[0]:
        batch["position_ids"] = torch.arange(longest).remainder(3).expand(len(rows), -1)
    return batch


def rows_of(lengths, **marks):
    return [{"input_ids": [5] * n, **marks} for n in lengths]


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.tokenizer = make_llama(vocabulary=401), TOKENIZER

    def training_step(self, batch, _):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def with_lightning(folder, rows, callback, batch=2, accumulate=1, epochs=1, steps=-1):
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "logger": False,
    }
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=epochs if steps < 0 else -1, max_steps=steps, default_root_dir=folder,
        accumulate_grad_batches=accumulate, **quiet,
    )  # fmt: skip
    trainer.callbacks.append(callback)
    trainer.fit(Module(), DataLoader(rows, batch_size=batch, collate_fn=collate))


class InOrder(Trainer):
    """(An argument says this in newer versions only.)"""

    def _get_train_sampler(self, *_):
        return SequentialSampler(self.train_dataset)


def with_transformers(folder, rows, callback, batch=2, accumulate=1, epochs=1, steps=-1, **settings):
    args = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=batch, num_train_epochs=epochs, max_steps=steps, use_cpu=True,
        gradient_accumulation_steps=accumulate, report_to="none", disable_tqdm=True, save_strategy="no", logging_steps=100,
        remove_unused_columns=False, **settings,
    )  # fmt: skip
    trainer = InOrder(make_llama(vocabulary=401), args, collate, rows, processing_class=TOKENIZER)
    trainer.add_callback(callback)
    trainer.train()


BOTH = pytest.mark.parametrize("train", [with_lightning, with_transformers])


def callback(**settings):
    return OLMESCallback(**{"every": 1, "suite": SUITE, "console": False, "at_start": False, **settings})


def points(folder):
    return [(e.point.tokens, e.point.step) for e in load_run(folder).evaluations]


@BOTH
@pytest.mark.parametrize(
    ("marks", "count", "tokens"),
    [
        ({"mask": 1}, "all", 38),
        ({"mask": 1}, "non_padding", 26),
        ({}, "non_padding", 26),
        ({"packed": 1}, "non_padding", 38),
    ],
)
def test_padding_is_counted_as_asked_and_the_record_says_how(train, marks, count, tokens, tmp_path):
    train(tmp_path, rows_of([10, 4, 9, 3], **marks), callback(every="1B", count=count))
    assert points(tmp_path) == [(tokens, 2)]
    assert load_run(tmp_path).evaluations[0].settings["count"] == count


@BOTH
def test_each_window_counts_whole_over_short_windows_and_epoch_ends(train, tmp_path):
    """Five micro-batches an epoch, two to a window: the windows are 2, 2, 1 and again 2, 2, 1, each row 10 tokens longer."""
    lengths = [10, 20, 30, 40, 50]
    train(tmp_path, rows_of(lengths), callback(), batch=1, accumulate=2, epochs=2)
    windows = [30, 70, 50] * 2
    assert points(tmp_path) == list(zip(itertools.accumulate(windows), range(1, 7), strict=True))


class Endless(IterableDataset):
    def __iter__(self):
        yield from itertools.cycle(rows_of([8, 12]))


@BOTH
def test_an_iterable_dataset_without_a_length(train, tmp_path):
    train(tmp_path, Endless(), callback(every=48), steps=5)
    assert points(tmp_path) == [(48, 2), (96, 4), (120, 5)]


@BOTH
def test_tokens_per_step_are_taken_as_given(train, tmp_path):
    train(tmp_path, rows_of([8] * 8), callback(every="2K", tokens_per_step="1K"))
    assert points(tmp_path) == [(2000, 2), (4000, 4)]
    assert load_run(tmp_path).evaluations[0].settings["count"] == "tokens_per_step"


@BOTH
@pytest.mark.parametrize(
    ("schedule", "tokens"),
    [
        ({"every": None, "at": [32, 64]}, [32, 64, 128]),
        ({"every": None, "at": [40], "at_end": False}, [48]),
        ({"every": "geometric:16,2"}, [16, 32, 64, 128]),
        ({"every": 64, "at": [16]}, [16, 64, 128]),
    ],
)
def test_schedules(train, schedule, tokens, tmp_path):
    train(tmp_path, rows_of([8] * 16), callback(**schedule))
    assert [at for at, _ in points(tmp_path)] == tokens


def test_a_compiled_training_is_neither_broken_nor_compiled_again(tmp_path):
    def graphs(*callbacks):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = {"torch_compile": True, "torch_compile_backend": "eager"}
        args = TrainingArguments(
            output_dir=str(tmp_path), per_device_train_batch_size=2, num_train_epochs=1, use_cpu=True, report_to="none",
            disable_tqdm=True, save_strategy="no", remove_unused_columns=False, **compiled,
        )  # fmt: skip
        rows = rows_of([8] * 8)
        trainer = Trainer(make_llama(vocabulary=401), args, collate, rows, None, TOKENIZER, callbacks=[*callbacks])
        trainer.train()
        counters = torch._dynamo.utils.counters
        return counters["stats"]["unique_graphs"], dict(counters["graph_break"])

    watched, alone = graphs(callback(every=16, at_start=True)), graphs()
    assert watched[0] == alone[0] + 1  # the counter's own, of one addition
    assert watched[1] == alone[1]
    assert points(tmp_path) == [(0, 0), (16, 1), (32, 2), (48, 3), (64, 4)]


def watch_on_a_rank(rank, folder, ranks_per_batch):
    """Each rank feeds batches of a length of its own; what it saw, and how many collectives a step made."""
    import torch.distributed as dist

    made = []
    whole = dist.all_reduce
    dist.all_reduce = lambda *a, **k: made.append(a[0].numel()) or whole(*a, **k)
    settings = {"suite": SUITE, "out": folder, "console": False, "at_start": False, "at_end": False}
    monitor = Monitor(make_llama(vocabulary=401), TOKENIZER, every=100, ranks_per_batch=ranks_per_batch, **settings)
    monitor.start()
    seen = []
    for step in range(6):
        made.clear()
        due = monitor.step(tokens=10 if ranks_per_batch == 2 else 10 + 20 * rank + step) is not None
        seen.append((monitor.tokens, due, list(made) if not due else None))
    dist.all_reduce = whole
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("ranks_per_batch", [1, 2])
def test_ranks_with_batches_of_their_own_stand_at_one_count_by_one_small_reduction(ranks_per_batch, tmp_path):
    first, second = run_ranks(watch_on_a_rank, 2, tmp_path, ranks_per_batch)
    assert first == second
    fed = [10 if ranks_per_batch == 2 else 40 + 2 * step for step in range(6)]
    assert [tokens for tokens, _, _ in first] == list(itertools.accumulate(fed))
    assert all(made == [1] for _, due, made in first if not due)
    assert [due for _, due, _ in first] == [
        after // 100 > (after - n) // 100 for (after, _, _), n in zip(first, fed, strict=True)
    ]
