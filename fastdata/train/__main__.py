"""The `python -m fastdata.train` command, in one process or under torchrun."""

from __future__ import annotations

from fastdata.system import interrupts

if __name__ == "__main__":
    interrupts.leave_at_once()

import argparse
import sys
import traceback
import warnings
from collections.abc import Sequence

import torch

from fastdata.errors import FastdataError
from fastdata.models import check_sizes, checks, create_model
from fastdata.terminal.flags import add_flags, from_flags
from fastdata.terminal.help import Parser
from fastdata.train import searches
from fastdata.train.checkpoint_files import load_checkpoint, naming
from fastdata.train.data import DataOptions, make_loaders
from fastdata.train.loop import fit
from fastdata.train.options import TrainOptions
from fastdata.train.ranks import (
    Ranks,
    end_at_once,
    is_one_of_several,
    join_ranks,
    launched_ranks,
    leave_ranks,
)
from fastdata.train.training import Training
from fastdata.train.validation import evaluate

__all__ = ["main"]


def parser() -> argparse.ArgumentParser:
    """The argument parser: one flag for each field of DataOptions and TrainOptions, and a few more."""
    made = Parser(
        prog="python -m fastdata.train",
        usage="%(prog)s --data-path DIR_OR_SHARDS [--model NAME] [options; --help lists them]",
        description="Trains an image classifier on a folder with one folder per class, or on shards.  Start it with "
        "torchrun to train in several processes.",
        epilog="On SIGTERM or SIGUSR1 the run saves a checkpoint in output_dir and exits with status 0; --resume auto "
        "continues it.",
    )
    made.add_argument(
        "--model",
        default="resnet50",
        help="small, or the name of a model in torchvision or timm (default: %(default)s)",
    )
    made.add_argument(
        "--weights", help="pretrained weights to start from: torchvision's name for them, or 'pretrained' for timm"
    )
    made.add_argument("--test-only", metavar="CHECKPOINT", help="only validate this checkpoint, do not train")
    made.add_argument("--check", action="store_true", help="only print what makes the model slow, do not train")
    made.add_argument(
        "--find-lr",
        action="store_true",
        help="only run a learning rate range test, with a plot, and suggest a learning rate",
    )
    made.add_argument(
        "--find-batch-size", action="store_true", help="only search for the largest batch size that fits (CUDA)"
    )
    made.add_argument("--remove-biases", action="store_true", help="remove biases that the following BatchNorm cancels")
    made.add_argument("--pad-classes", action="store_true", help="pad the outputs of the last layer to a multiple of 8")
    for cls in (DataOptions, TrainOptions):
        add_flags(made, cls)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    given = parser().parse_args(argv)
    format_before, warnings.formatwarning = warnings.formatwarning, _one_line
    has_ended_well, status = False, 1
    try:
        data, options = (from_flags(cls, given) for cls in (DataOptions, TrainOptions))
        with interrupts.raised():
            status = _run(given, data, options)
            has_ended_well = True
            return status
    except KeyboardInterrupt:
        kept = "nothing was saved"
        if given.output_dir is not None:
            kept = f"--resume auto continues from the latest checkpoint in {given.output_dir}"
        print(f"\nstopped by Ctrl-C; {kept} (to save a checkpoint first, send SIGTERM)", file=sys.stderr)
        status = interrupts.STATUS
        return status
    except (FastdataError, OSError) as error:
        print(f"{type(error).__name__}: {given.parser.in_options(error)}", file=sys.stderr)
        return 1
    except BaseException:
        if is_one_of_several():  # nobody would print it
            traceback.print_exc()
        raise
    finally:
        if is_one_of_several() and not has_ended_well:
            end_at_once(status=status)
        leave_ranks()
        warnings.formatwarning = format_before


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return f"{category.__name__}: {message}\n"


def _run(given: argparse.Namespace, data: DataOptions, options: TrainOptions) -> int:
    launched = launched_ranks()
    only_asks = given.check or given.find_lr or given.find_batch_size
    if only_asks and not launched.is_main:  # one process answers for all
        return 0
    ranks = Ranks() if only_asks else join_ranks(options.torch_device(), options.timeout_s)
    loaders = make_loaders(data, options, ranks)
    torch.manual_seed(options.seed)
    model = create_model(given.model, len(loaders.classes), weights=given.weights)
    example = torch.zeros(2, 3, data.train_crop_size, data.train_crop_size)
    check_sizes(model, given.model, data.sides(options.epochs))
    if given.remove_biases:
        removed = checks.remove_useless_biases(model, example)
        if ranks.is_main:
            print(f"biases removed: {', '.join(removed) or 'none'}")
    if given.pad_classes:
        model = checks.PaddedClasses(model, len(loaders.classes))
    if given.check:
        print(checks.advice(model, example, batch_size=options.batch_size))
        return 0
    if given.find_batch_size:
        print(searches.find_batch_size(model, options, data.train_crop_size, len(loaders.classes)))
        return 0
    if given.find_lr:
        print(searches.find_lr(model, loaders.train(0), options))
        if launched.world_size > 1:
            own, joint = options.batch_size, options.batch_size * launched.world_size
            print(
                f"this learning rate is for one process with a batch size of {own}; {launched.world_size} processes "
                f"have a total batch size of {joint}: search with -b {joint}, or see --lr-scaling"
            )
        return 0
    if given.test_only:
        saved = load_checkpoint(given.test_only)["training"]
        with ranks.together():
            training = Training(model, options, ranks=ranks, batches_per_epoch=1, num_classes=len(loaders.classes))
            with naming(given.test_only):
                training.load_weights(saved)
            found = evaluate(training.best_weights, loaders.val, training=training)
        if ranks.is_main:
            print(found)
        return 0
    result = fit(model, loaders.train, loaders.val, options, ranks=ranks, num_classes=len(loaders.classes))
    return 0 if not result.stopped or options.output_dir is not None else 1


if __name__ == "__main__":
    sys.exit(main())
