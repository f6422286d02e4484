"""OLMESCallback in real Lightning Trainers, a few steps each."""

import importlib
import json

import lightning.pytorch
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, WandbLogger
from parts import make_llama
from torch.utils.data import DataLoader
from wandb_file import axes, history, offline_run

from olmes_monitor import OLMESCallback, load_run
from olmes_monitor.errors import SetupError

ROWS, LENGTH = 4, 10
BATCH = ROWS * LENGTH


def make_module(pl=lightning.pytorch, tokenizer=None, **parts):
    """A LightningModule of either package; `parts` replace or join its one part, the model."""

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            for name, part in (parts or {"model": make_llama()}).items():
                setattr(self, name, part)
            if tokenizer is not None:
                self.tokenizer = tokenizer
            self.losses = []

        def training_step(self, batch, _):
            ids = batch["input_ids"] if isinstance(batch, dict) else batch
            output = self.model(ids)
            logits = getattr(output, "logits", output)
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()


def batches(count=8):
    """Each batch is ROWS x LENGTH."""
    ids = torch.randint(0, 300, (count * ROWS, LENGTH), generator=torch.Generator().manual_seed(0))
    return DataLoader([{"input_ids": row} for row in ids], batch_size=ROWS)


def make_trainer(folder, pl=lightning.pytorch, **settings):
    defaults = {"max_epochs": 1, "accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "default_root_dir": folder}
    return pl.Trainer(**{**defaults, **quiet, **settings})


def points(folder):
    return [(e.point.tokens, e.point.step) for e in load_run(folder).evaluations]


@pytest.fixture
def callback(suite):
    return OLMESCallback(every=3 * BATCH, suite=suite, console=False)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_three_lines_in_a_trainer_of_either_package(package, tokenizer, callback, tmp_path):
    pl = importlib.import_module(package)
    trainer = make_trainer(tmp_path, pl)
    trainer.callbacks.append(callback)
    trainer.fit(make_module(pl, tokenizer), batches())
    assert points(tmp_path) == [(0, 0), (3 * BATCH, 3), (6 * BATCH, 6), (8 * BATCH, 8)]


def test_under_accumulation_each_optimizer_step_counts_once(tokenizer, suite, tmp_path):
    trainer = make_trainer(tmp_path, accumulate_grad_batches=3)
    trainer.callbacks.append(OLMESCallback(every=BATCH, suite=suite, console=False))
    trainer.fit(make_module(tokenizer=tokenizer), batches(8))
    # Two whole windows, and a last one of two batches at the epoch's end.
    assert points(tmp_path) == [(0, 0), (3 * BATCH, 1), (6 * BATCH, 2), (8 * BATCH, 3)]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_training_is_bit_equal_with_and_without(tokenizer, suite, tmp_path, precision):
    losses = []
    for with_callback in (False, True):
        torch.manual_seed(7)
        module = make_module(tokenizer=tokenizer, model=make_llama(attention_dropout=0.3))
        trainer = make_trainer(tmp_path / str(with_callback), precision=precision)
        if with_callback:
            trainer.callbacks.append(OLMESCallback(every=BATCH, suite=suite, console=False))
        trainer.fit(module, batches())
        losses.append((module.losses, [p.clone() for p in module.parameters()]))
    assert losses[0][0] == losses[1][0]
    assert all(torch.equal(a, b) for a, b in zip(losses[0][1], losses[1][1], strict=True))
    assert len(points(tmp_path / "True")) == 9


def test_the_evaluation_runs_in_the_trainers_precision(tokenizer, suite, tmp_path):
    seen = []
    model = make_llama()
    model.lm_head.register_forward_hook(lambda m, _, out: seen.append((m.training, out.dtype)))
    trainer = make_trainer(tmp_path, precision="bf16-mixed")
    trainer.callbacks.append(OLMESCallback(every="1B", suite=suite, console=False))
    trainer.fit(make_module(tokenizer=tokenizer, model=model), batches(1))
    assert {dtype for training, dtype in seen if not training} == {torch.bfloat16}


def test_a_resumed_run_goes_on_and_repeats_nothing(tokenizer, suite, tmp_path):
    def fit(steps, **settings):
        trainer = make_trainer(tmp_path, max_steps=steps, max_epochs=-1, **settings)
        trainer.callbacks.append(OLMESCallback(every=2 * BATCH, suite=suite, console=False, at_end=False))
        trainer.fit(make_module(tokenizer=tokenizer), batches(), ckpt_path=path if path.exists() else None)
        trainer.save_checkpoint(path)

    path = tmp_path / "half.ckpt"
    fit(4)
    fit(7)
    run = load_run(tmp_path)
    assert points(tmp_path) == [(0, 0), (2 * BATCH, 2), (4 * BATCH, 4), (6 * BATCH, 6)]
    assert run.superseded == []


def test_wandb_gets_one_row_an_evaluation_on_the_token_axis(tokenizer, callback, tmp_path):
    logger = WandbLogger(project="test", save_dir=tmp_path, offline=True)
    trainer = make_trainer(tmp_path, logger=logger, log_every_n_steps=1)
    trainer.callbacks.append(callback)
    trainer.fit(make_module(tokenizer=tokenizer), batches())
    logger.experiment.finish()
    path = offline_run(tmp_path)
    rows = [row for row in history(path) if "olmes/tokens" in row]
    assert [row["olmes/tokens"] for row in rows] == [0, 3 * BATCH, 6 * BATCH, 8 * BATCH]
    assert [row["olmes/step"] for row in rows] == [0, 3, 6, 8]
    rules = axes(path)
    assert rules["*"] == "trainer/global_step"
    own = {name for name in rows[0] if name.startswith("olmes/")}
    assert len(own) > 10
    assert {rules[name] for name in own - {"olmes/tokens"}} == {"olmes/tokens"}
    assert load_run(callback.monitor.out).evaluations[0].metrics["olmes/cf/boxes"] == rows[0]["olmes/cf/boxes"]


def test_other_loggers_and_a_callable_get_the_same_rows(tokenizer, suite, tmp_path):
    rows = []
    trainer = make_trainer(tmp_path, logger=CSVLogger(tmp_path, name="csv", version=0))
    trainer.callbacks.append(OLMESCallback(every="1B", suite=suite, console=False, log=rows.append))
    trainer.fit(make_module(tokenizer=tokenizer), batches())
    text = (tmp_path / "csv" / "version_0" / "metrics.csv").read_text()
    assert "olmes/cf/boxes" in text.splitlines()[0]
    assert str(rows[-1]["olmes/cf/boxes"]) in text
    assert (tmp_path / "csv" / "version_0" / "olmes" / "evaluations.jsonl").exists()


def test_two_optimizers_by_hand(tokenizer, suite, tmp_path):
    class Manual(type(make_module())):
        automatic_optimization = False

        def training_step(self, batch, _):
            loss = super().training_step(batch, _)
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()

        def configure_optimizers(self):
            halves = list(self.parameters())
            return [torch.optim.SGD(halves[:3], lr=0.1), torch.optim.SGD(halves[3:], lr=0.1)]

    trainer = make_trainer(tmp_path)
    trainer.callbacks.append(OLMESCallback(every=4 * BATCH, suite=suite, console=False, tokenizer=tokenizer))
    trainer.fit(Manual(), batches())
    assert [tokens for tokens, _ in points(tmp_path)] == [0, 4 * BATCH, 8 * BATCH]


def test_tokens_can_be_given_instead_of_counted(tokenizer, suite, tmp_path):
    for i, settings in enumerate([{"tokens_per_step": "1K"}, {"count_tokens": lambda batch: 1000}]):
        trainer = make_trainer(tmp_path / str(i))
        trainer.callbacks.append(OLMESCallback(every="4K", suite=suite, console=False, **settings))
        trainer.fit(make_module(tokenizer=tokenizer), batches())
        assert points(tmp_path / str(i)) == [(0, 0), (4000, 4), (8000, 8)]


def test_the_language_model_is_found_or_named(tokenizer, suite, tmp_path):
    def fit(module, **settings):
        trainer = make_trainer(tmp_path)
        trainer.callbacks.append(OLMESCallback(every="1B", suite=suite, console=False, tokenizer=tokenizer, **settings))
        trainer.fit(module, batches(1))
        return trainer.callbacks[-1].monitor.scorer.model

    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make_llama()

        def forward(self, ids):
            return self.inner(ids).logits

    teacher, student = torch.nn.Linear(2, 2), make_llama()
    module = make_module(model=student, teacher=teacher)
    assert fit(module) is student
    a, b = Wrapper(), Wrapper()
    two = make_module(first=a, second=b)
    with pytest.raises(SetupError, match=r"parts with weights: first, second.*model=lambda"):
        fit(two)
    module = make_module(model=a, other=b)
    assert fit(module, model=lambda module: module.other) is b
    assert fit(module, model=b) is b


def test_set_up_errors_come_before_the_first_step(tokenizer, suite, tmp_path):
    def refuses(words, module=None, **settings):
        module = module or make_module(tokenizer=tokenizer)
        trainer = make_trainer(tmp_path)
        trainer.callbacks.append(OLMESCallback(suite=suite, console=False, **settings))
        with pytest.raises(SetupError, match=words):
            trainer.fit(module, batches())
        assert module.losses == []

    refuses("no tokenizer.*OLMESCallback\\(tokenizer=", make_module())
    refuses("embedding has 300 rows", make_module(tokenizer=tokenizer, model=make_llama(vocabulary=300)))
    refuses("model= returned a dict", model=lambda module: {})
    with pytest.raises(SetupError, match="every takes"):
        OLMESCallback(every=-1)
    with pytest.raises(SetupError, match="not two"):
        OLMESCallback(tokens_per_step=5, count_tokens=len)


def test_a_batch_that_cannot_be_counted_says_what_to_pass(tokenizer, suite, tmp_path):
    class Floats(type(make_module())):
        def training_step(self, batch, _):
            return sum(p.sum() for p in self.parameters())

    trainer = make_trainer(tmp_path)
    trainer.callbacks.append(OLMESCallback(suite=suite, console=False, tokenizer=tokenizer))
    with pytest.raises(SetupError, match=r"float32 tensor of shape \(2, 3\).*count_tokens=.*tokens_per_step="):
        trainer.fit(Floats(), DataLoader(torch.rand(8, 3), batch_size=2))


def test_the_record_says_how_it_was_measured(tokenizer, callback, suite, tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.callbacks.append(callback)
    trainer.fit(make_module(tokenizer=tokenizer), batches(1))
    line = json.loads((tmp_path / "olmes" / "evaluations.jsonl").read_text().splitlines()[0])
    assert line["fingerprint"] == suite.fingerprint
    assert {"torch", "transformers", "lightning", "olmes_monitor"} <= line["versions"].keys()
    assert line["settings"]["dtype"] == "torch.float32"
