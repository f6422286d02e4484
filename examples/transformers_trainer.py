"""The demo's twin in transformers' Trainer, in a shorter run (about two minutes on two cores).

The tiny model rehearses the questions it is asked: its scores mean nothing, its crossing is real.
"""

from __future__ import annotations

import argparse

from rehearsal import Rehearsal, tiny_llama, tiny_tokenizer
from transformers import Trainer, TrainingArguments, default_data_collator

from olmes_monitor import OLMESCallback, load_suite


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", default="runs/transformers_trainer", help="the run's folder")
    arguments.add_argument("--steps", type=int, default=200, help="optimizer steps of 4096 tokens")
    arguments.add_argument("--every", default="60K", help="tokens between two evaluations")
    arguments.add_argument("--questions", type=int, default=40, help="questions of each task")
    args = arguments.parse_args()

    suite = load_suite("quick", tasks=["arc_easy", "openbookqa"], limit=args.questions)
    tokenizer = tiny_tokenizer(suite)
    trainer = Trainer(
        model=tiny_llama(len(tokenizer)),
        args=TrainingArguments(
            output_dir=args.out,
            max_steps=args.steps,
            per_device_train_batch_size=8,
            learning_rate=2e-3,
            lr_scheduler_type="cosine",
            logging_steps=20,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=Rehearsal(suite, tokenizer, plain_rows=8 * args.steps // 4, ramp_rows=8 * args.steps // 4),
        processing_class=tokenizer,
        data_collator=default_data_collator,
    )
    trainer.add_callback(OLMESCallback(every=args.every, suite=suite))
    trainer.train()
    print(f"record: {args.out}/olmes/evaluations.jsonl")
    print("The model rehearsed the questions it was asked: its scores mean nothing, its crossing is real.")


if __name__ == "__main__":
    main()
