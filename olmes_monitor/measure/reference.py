"""Every number of an evaluation, defined: what README cites and `explain` prints.

Averages are over questions, and for a task with subjects (MMLU) over its subjects (macro, the OLMES rule), unless a
definition says otherwise. Accuracies, gaps and standard errors are fractions of 1; logarithms are natural.
"""

from __future__ import annotations

METRICS: dict[str, str] = {
    "olmes/cf/<task>": "accuracy of the cloze form under the task's OLMES normalization",
    "olmes/mcf/<task>": "accuracy of the multiple-choice form: the label with the highest log-likelihood",
    "olmes/score/<task>": "the OLMES score: the better of cf and mcf (arXiv 2406.08446, §2)",
    "olmes/gap/<task>": "mcf minus cf on the same questions",
    "olmes/stderr/cf/<task>": "standard error of cf: √(p(1−p)/(n−1)); over k subjects √(Σ se²)/k",
    "olmes/stderr/mcf/<task>": "standard error of mcf, likewise",
    "olmes/stderr/gap/<task>": "standard error of the gap, paired: of the differences question by question",
    "olmes/<any of these>/average": "plain mean over the suite's tasks, its standard error √(Σ se²)/tasks; absent "
    "unless every task has its value",
}
"""Logged name → what it is: an evaluation's own metrics."""

BESIDE: dict[str, str] = {
    "olmes/crossover/<task>/tokens": "where MCF overtook CF, interpolated between evaluations; absent while it has not",
    "olmes/crossover/<task>/lo": "lower end of its 95 % interval, tokens",
    "olmes/crossover/<task>/hi": "upper end of its 95 % interval, tokens",
    "olmes/tokens": "tokens trained on so far: the axis",
    "olmes/step": "optimizer steps so far, as the trainer counts them",
    "olmes/seconds": "wall time of the evaluation",
    "olmes/overhead": "the evaluation's share of the wall time since the one before; absent before training",
}
"""Logged name → what it is: what a row has beside them, from the run."""

FACTS: dict[str, str] = {
    "n": "questions",
    "normalization": "how the cloze choices of the headline are scored",
    "chance": "expected accuracy of a blind guess, the average of 1/choices",
    "floor": "what knows nothing can score: the higher of chance and the best single-label answer",
    "pick_longest": "accuracy of always taking the choice with the most characters, first of equals",
    "pick_shortest": "accuracy of always taking the choice with the fewest characters, first of equals",
    "cf": "accuracy of the cloze form",
    "mcf": "accuracy of the multiple-choice form",
    "gap": "mcf − cf, paired",
    "stderr_cf": "standard error of cf",
    "stderr_mcf": "standard error of mcf",
    "stderr_gap": "standard error of gap, paired",
    "ties_cf": "questions whose best cloze score several choices share; the first of them is the answer",
    "ties_mcf": "questions whose best label several labels share; the first of them is the answer",
    "best": "the better form, cf or mcf; cf where they are equal",
    "score": "accuracy of the better form",
    "micro": "cf, mcf, gap and their standard errors over questions, where the headline is over subjects",
    "domains": "stem, humanities, social_sciences, other → n, and cf, mcf, gap and their standard errors over the "
    "domain's subjects (MMLU, see domains.py)",
    "cf_by_normalization": "cloze accuracy under every normalization whose inputs were asked, the headline's too",
    "length_bias": "tau: normalization → mean within-question Kendall τ_b of cloze score against bytes (0 is free of "
    "bias, above 0 leans to the longer choice), over questions, those without one left out and counted in undefined; "
    "slope: what one more byte costs within a question, in nats, the b of `bayes` (arXiv 2607.12767)",
    "gold_probability_cf": "mean exp(ℓ_gold)/Σ exp(ℓ) over the choices' cloze log-likelihoods, without normalization "
    "by length (arXiv 2504.11393)",
    "gold_probability_mcf": "the same over the labels",
    "bits_per_byte": "mean −ℓ_gold/(ln 2 · bytes) of the gold answer's cloze text (arXiv 2412.04403); lower is better",
    "label_mass": "mean Σ p(label): how sure the model is that a label comes at all",
    "label_bias": "predicted, gold: questions a label; total_variation: ½ Σ |share predicted − share gold|; accuracy: "
    "by gold label, null where no question has it",
    "cyclic": 'asked with permutations="cyclic": MCF in every cyclic order of the choices, in the order of shift k label '
    "j standing for choice (j + k) mod n. accuracy: by shift from 0, over the questions with more than k choices, which "
    "`questions` counts; debiased: accuracy of the choice with the largest probability (softmax of the labels' "
    "log-likelihoods over the question's choices) averaged over the question's orders (cyclic permutation, arXiv "
    "2309.03882); gain: debiased − mcf, paired; spread: largest minus smallest accuracy over the orders that every "
    "question has; consistent: share of questions answered with the same choice in all orders; and the standard errors "
    "of debiased, gain and consistent",
    "warnings": "what may be wrong although the numbers are defined: a short finding, a colon, what it may mean",
}
"""Key of `Evaluation.tasks[task]` → what it is; absent where it was not asked or has no honest value."""


def as_markdown() -> str:
    """Both tables as a page; `python -m olmes_monitor.measure.reference > docs/metrics.md` writes it anew."""
    intro = (__doc__ or "").partition("\n\n")[2].strip()
    facts = "## In the record: `Evaluation.tasks[task]`, one object a task in each line of `evaluations.jsonl`"
    parts = [
        f"# Every number, defined\n\n{intro}\n\n## Logged\n\n| name | meaning |\n| --- | --- |",
        *(f"| `{name}` | {meaning} |" for name, meaning in (METRICS | BESIDE).items()),
        f"\n{facts}\n\nAbsent where it was not asked or has no honest value.\n\n| key | meaning |\n| --- | --- |",
        *(f"| `{name}` | {meaning} |" for name, meaning in FACTS.items()),
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    print(as_markdown(), end="")
