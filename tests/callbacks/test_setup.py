"""What does not fit is an error before the first optimizer step, in both trainers, and says the mend."""

import lightning.pytorch as pl
import pytest
import torch
from parts import make_llama, make_task, make_tokenizer
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments, default_data_collator

from olmes_monitor import OLMESCallback, Suite
from olmes_monitor.errors import DataError, RecordError, SetupError

SUITE = Suite("tiny", [make_task("boxes", 2)])
TOKENIZER = make_tokenizer(SUITE)
ROWS = [{"input_ids": row, "labels": row} for row in torch.randint(0, 200, (8, 10))]


class Module(pl.LightningModule):
    def __init__(self, model, tokenizer):
        super().__init__()
        self.model, self.tokenizer = model, tokenizer

    def training_step(self, batch, _):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def with_lightning(folder, callback, model, tokenizer):
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "logger": False,
    }
    trainer = pl.Trainer(accelerator="cpu", max_epochs=1, default_root_dir=folder, **quiet)
    trainer.callbacks.append(callback)
    trainer.fit(Module(model, tokenizer), DataLoader(ROWS, batch_size=4))


def with_transformers(folder, callback, model, tokenizer):
    args = TrainingArguments(
        output_dir=str(folder), use_cpu=True, report_to="none", disable_tqdm=True, num_train_epochs=1
    )
    trainer = Trainer(model, args, default_data_collator, ROWS, processing_class=tokenizer)
    trainer.add_callback(callback)
    trainer.train()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"evry": "1B"}, "OLMESCallback has no setting 'evry'; did you mean every"),
        ({"batch_token": 64}, "did you mean batch_tokens"),
        ({"colour": 1}, "OLMESCallback has no setting 'colour'; it has every, at, .*permutations"),
        ({"on_crossover": "mail"}, "on_crossover takes a function; got 'mail'"),
        ({"count_tokens": 512}, "count_tokens takes a function; got 512"),
        ({"model": "lm"}, "model takes a torch.nn.Module, or a function"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_where_it_is_made(settings, words):
    with pytest.raises(SetupError, match=words):
        OLMESCallback(**settings)


@pytest.mark.parametrize("train", [with_lightning, with_transformers])
@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"tokenizer": None}, SetupError, r"no tokenizer: .*OLMESCallback\(tokenizer="),
        ({"vocabulary": 300}, SetupError, r"embedding has 300 rows: this is not the tokenizer.*tokenizer=\.\.\."),
        ({"suite": "quick"}, DataError, "olmes-monitor data --from"),
        ({"suite": "quikc"}, SetupError, "quick"),
        ({"out": "a file"}, RecordError, "cannot make the record's folder"),
        ({"permutations": "all"}, SetupError, 'permutations takes "none" or "cyclic"'),
        ({"name": "mcf"}, SetupError, "name takes letters"),
        ({"on_error": "ignore"}, SetupError, 'on_error takes "warn" or "raise"'),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else None,
)
def test_before_the_first_step(train, change, error, words, tmp_path, monkeypatch):
    # No questions in the cache, and no index to fetch them from.
    monkeypatch.setenv("OLMES_MONITOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "file").write_text("")
    settings = {"suite": SUITE, "console": False} | change
    tokenizer = settings.pop("tokenizer", TOKENIZER)
    model = make_llama(vocabulary=settings.pop("vocabulary", 400))
    if "out" in settings:
        settings["out"] = tmp_path / "file"
    forwards = []
    model.register_forward_pre_hook(lambda module, _: forwards.append(module.training))
    with pytest.raises(error, match=words):
        train(tmp_path / "run", OLMESCallback(**settings), model, tokenizer)
    assert True not in forwards, "a training step was taken"
    if train is with_transformers:
        assert len(model._forward_pre_hooks) == 1, "a hook was left"
