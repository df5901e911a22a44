"""Checkpoints: written whole or not at all, the latest few kept; and signals that ask for one before the end.

A checkpoint holds all that the next update depends on, so a run that was killed and resumed gives the losses of one
that was not: weights, averages, optimiser, schedule, scaler, the loader's place in its epoch, the random state of every
process, and the losses so far.
"""

from __future__ import annotations

import random
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fastdata.errors import OptionError, TrainError
from fastdata.files import whole_file
from fastdata.train.state import Training

__all__ = ["Keeper", "load_checkpoint"]

VERSION = 2
_SIGNALS = ("SIGTERM", "SIGUSR1")
# Options that may differ between a checkpoint and the run that resumes it without a word.
_FREE = {"resume", "output_dir", "keep", "save_every", "print_freq", "profile", "tensorboard", "timeout_s", "device"}


class Keeper:
    """Saves and restores a run.

    Attributes:
        told_to_stop: a signal came, and every process knows.
    """

    def __init__(self, training: Training) -> None:
        self.training, self.told_to_stop = training, False
        folder = training.options.output_dir
        self.folder = Path(folder) if folder is not None else None
        self._signalled = False
        self._randoms: list[dict[str, Any]] | None = None  # of a checkpoint, until they are put back
        if self.folder is not None and training.ranks.is_main:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError) as error:
                raise OptionError(f"output_dir={folder!r} is a file; name a folder") from error
        # What a plain loader's order was drawn from: random states from before its iterator was made.
        self._began: dict[str, Any] = {}
        self._generator: torch.Tensor | None = None  # of a plain loader, when the checkpoint was taken

    def is_due(self) -> bool:
        """True after an update when it is time to save; asks the other processes about signals at every look."""
        training, options = self.training, self.training.options
        if training.ranks.world_size == 1:
            self.told_to_stop = self._signalled
        elif training.updates % options.print_freq == 0:
            self.told_to_stop = training.ranks.largest(int(self._signalled)) > 0  # waits, as the look did
        if self.told_to_stop:
            return True
        return options.save_every > 0 and training.updates % options.save_every == 0

    def save(self, loader: Any, result: Any) -> None:
        """Writes a checkpoint under its final name once it is whole and on the disk, and removes the oldest."""
        if self.folder is None:
            return
        training, randoms = self.training, self._random_states()
        if not training.ranks.is_main:
            return
        state = {
            "version": VERSION,
            "options": asdict(training.options),
            "training": training.state_dict(),
            "loader": loader.state_dict() if hasattr(loader, "state_dict") else None,
            "random": randoms,
            "began": self._began,
            "generator": loader.generator.get_state() if getattr(loader, "generator", None) is not None else None,
            "result": vars(result),
        }
        path = self.folder / f"checkpoint-{training.updates:08}.pt"
        with whole_file(path) as file:
            torch.save(state, file)
        for old in sorted(self.folder.glob("checkpoint-*.pt"))[: -training.options.keep]:
            old.unlink()

    def restore(self, result: Any) -> Any:
        """Loads the checkpoint that the options name, if there is one; returns the loader's state."""
        path, training = self._wanted(), self.training
        state = load_checkpoint(path) if path is not None else None
        if state is not None:
            training.load_state_dict(state["training"])
            vars(result).update(state["result"])
            self._randoms, self._began, self._generator = state["random"], state["began"], state["generator"]
        self._refuse_strangers()
        self._check_same_place()
        if training.ranks.is_main and training.options.resume is not None:
            self._say_what_was_resumed(path, state)
        return state["loader"] if state is not None else None

    def _say_what_was_resumed(self, path: Path | None, state: dict[str, Any] | None) -> None:
        training = self.training
        if path is None or state is None:
            print(f"nothing to resume in {self.folder}; beginning anew")
            return
        place = f"epoch {training.epoch}, batch {training.batch}, after {training.updates} updates"
        done = "; the run was finished" if training.epoch >= training.options.epochs else ""
        print(f"resumed {path}: {place}{done}")
        given = asdict(training.options)
        changed = [name for name, value in state["options"].items() if name not in _FREE and given.get(name) != value]
        if changed:
            told = ", ".join(f"{name} was {state['options'][name]!r}, is {given.get(name)!r}" for name in changed)
            warnings.warn(f"resuming {path.name} with other options: {told}", stacklevel=4)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Makes SIGTERM and SIGUSR1 ask for a checkpoint and the end of the run, while in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        known = [getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)]
        before = {number: signal.signal(number, self._note_signal) for number in known}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note_signal(self, number: int, frame: Any) -> None:
        self._signalled = True

    def _wanted(self) -> Path | None:
        wanted = self.training.options.resume
        if wanted == "auto":
            assert self.folder is not None
            return max(self.folder.glob("checkpoint-*.pt"), default=None)
        return Path(wanted) if wanted is not None else None

    def _random_states(self) -> list[dict[str, Any]]:
        """Of every process, in order."""
        own: dict[str, Any] = {"torch": torch.get_rng_state(), "python": random.getstate()}
        if self.training.device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(self.training.device)
        if self.training.ranks.world_size == 1:
            return [own]
        states: list[Any] = [None] * self.training.ranks.world_size
        dist.all_gather_object(states, own)
        return states

    def begin_epoch(self, loader: Any) -> None:
        """Called before an epoch's iterator is made; a resumed epoch is begun with the numbers it began with."""
        generator = getattr(loader, "generator", None)
        if not self.has_resumed:
            self._began = {"torch": torch.get_rng_state()}
            if generator is not None:
                self._began["generator"] = generator.get_state()
            return
        if self.training.batch == 0:
            self.restore_random()
            if generator is not None and self._generator is not None:
                generator.set_state(self._generator)
            self.begin_epoch(loader)
        elif not hasattr(loader, "load_state_dict") and self._began:
            torch.set_rng_state(self._began["torch"])
            if generator is not None and "generator" in self._began:
                generator.set_state(self._began["generator"])

    def _refuse_strangers(self) -> None:
        """A folder with later checkpoints is another run's, whose files this one would mix with its own."""
        later = [] if self.folder is None else sorted(self.folder.glob("checkpoint-*.pt"))
        later = [path for path in later if int(path.stem.rpartition("-")[2]) > self.training.updates]
        if later:
            raise TrainError(
                f"output_dir {self.folder} holds checkpoints of another run, up to {later[-1].name}; go on with it by "
                "resume='auto', or name another output_dir"
            )

    def _check_same_place(self) -> None:
        updates, ranks = self.training.updates, self.training.ranks
        if ranks.largest(updates) != -ranks.largest(-updates):
            raise TrainError(
                f"rank {ranks.rank} would begin at update {updates}, others elsewhere; "
                "output_dir must be a folder that all machines share"
            )

    def farewell(self) -> str:
        """What a run that was told to stop says."""
        kept = "not saved, since there is no output_dir"
        if self.folder is not None:
            kept = f"saved in {self.folder}; resume='auto' goes on"
        return f"stopped by a signal after {self.training.updates} updates, {kept}"

    @property
    def has_resumed(self) -> bool:
        """True from `restore` until the first epoch begins."""
        return self._randoms is not None

    def restore_random(self) -> None:
        """Puts back the random states of the checkpoint that was restored, once."""
        states, self._randoms, ranks = self._randoms, None, self.training.ranks
        if states is None:
            return
        if len(states) != ranks.world_size:  # no process continues another's
            torch.manual_seed(self.training.options.seed + 1000 * self.training.updates + ranks.rank)
            return
        own = states[ranks.rank]
        torch.set_rng_state(own["torch"])
        random.setstate(own["python"])
        if "cuda" in own and self.training.device.type == "cuda":
            torch.cuda.set_rng_state(own["cuda"], self.training.device)


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """What `Keeper.save` wrote.

    Raises:
        TrainError: the file is missing, damaged, or of another version.
    """
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise TrainError(f"there is no checkpoint {path}") from error
    except Exception as error:  # torch raises many kinds for files that are not its own
        raise TrainError(f"{path} is not a whole checkpoint: {error}") from error
    if not isinstance(state, dict) or "version" not in state:
        raise TrainError(f"{path} was not written by fastdata.train; --weights begins with trained weights")
    if state["version"] != VERSION:
        raise TrainError(f"{path} is a checkpoint of version {state['version']}; this is version {VERSION}")
    return state
