"""Checkpoints: what they hold, only the latest few kept; and signals that save one before the run stops.

A checkpoint holds everything that the next update depends on: weights, averaged weights, optimiser, schedule, gradient
scaler, the loader's place in its epoch, the random state of every process, and the losses so far.  So a run that was
killed and resumed gives the same losses as one that was not.  With fastdata's DataLoader that holds for random numbers
that a dataset draws in worker processes, too; torch's own starts its workers anew, with other numbers.
"""

from __future__ import annotations

import io
import os
import pickle
import shutil
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

from fastdata.errors import TrainError
from fastdata.order.random_states import random_state, seed_anew, set_generators, set_random_state
from fastdata.system.stack_level import users_level
from fastdata.train.best import best_epoch
from fastdata.train.checkpoint_files import (
    VERSION,
    load_checkpoint,
    make_output_dir,
    naming,
    newest_intact,
    save_checkpoint,
    writing,
)
from fastdata.train.ranks import Vote
from fastdata.train.training import Training

__all__ = ["Checkpointer"]

_SIGNALS = ("SIGTERM", "SIGUSR1")
# Options that may differ between a checkpoint and the run that resumes it without a word.
_FREE = {"resume", "output_dir", "keep", "save_every", "print_freq", "profile", "tensorboard", "timeout_s", "device"}


class Checkpointer:
    """Saves and restores a run.

    Attributes:
        told_to_stop: True when a process received a signal to stop, and all processes know.
        has_resumed: True from `restore` until the first epoch begins.
        owes_validation: True if the restored checkpoint was saved after an epoch's training, before its validation.
    """

    def __init__(self, training: Training) -> None:
        self.training, self.told_to_stop, self.has_resumed, self.owes_validation = training, False, False, False
        folder = training.options.output_dir
        self.folder = Path(folder) if folder is not None else None
        self._latest: Path | None = None  # that rank 0 has saved or restored
        self._signalled = False
        self._vote: Vote | None = None
        if self.folder is not None and training.ranks.is_main:
            make_output_dir(self.folder)
        # What a plain loader's order was drawn from: random states from before its iterator was made.
        self._began: dict[str, Any] = {}
        self._resumed: dict[str, Any] | None = None  # this process's random states in the checkpoint

    def is_due(self) -> bool:
        """True if a checkpoint is due after this update.

        All processes act on a signal to any of them at the same update: they vote after each update, in the background,
        and read the votes one update later.
        """
        training, options = self.training, self.training.options
        if training.ranks.world_size == 1:
            self.told_to_stop = self._signalled
        else:
            self.told_to_stop = self._vote is not None and self._vote.is_yes()
            self._vote = Vote(self._signalled)
        if self.told_to_stop:
            return True
        return options.save_every > 0 and training.updates % options.save_every == 0

    def is_signalled(self) -> bool:
        """True if this process received a signal to stop."""
        return self._signalled

    def save(self, loader: Any, result: Any, *, validated: bool = True) -> None:
        """Writes a checkpoint atomically and removes the oldest ones.

        Args:
            loader: the loader of the current epoch, or of the one that has just ended.
            result: the run's result so far.
            validated: False if the epoch has ended but its validation is still to come.
        """
        if self.folder is None:
            return
        training, randoms = self.training, self._random_states(loader)
        self._check_finite()
        kept = training.state_dict()  # which gathers what is sharded
        if not training.ranks.is_main:
            return
        state = {
            "version": VERSION,
            "options": asdict(training.options),
            "training": kept,
            "loader": _state_of(loader),
            "random": randoms,
            "result": vars(result),
            "validated": validated,
        }
        self._latest = self.folder / f"checkpoint-{training.updates:08}.pt"
        save_checkpoint(self._latest, state)
        for old in self._kept()[: -training.options.keep]:
            old.unlink()

    def keep_best(self, result: Any) -> None:
        """Keeps the checkpoint that was saved or restored last as best.pt, if its epoch is the best so far."""
        options = self.training.options
        if self.folder is None or self._latest is None or options.best_metric is None:
            return
        if best_epoch(result.epochs, options) == len(result.epochs) - 1:
            new = self.folder / ".best.pt.partial"
            new.unlink(missing_ok=True)
            try:
                os.link(self._latest, new)
            except OSError:  # a file system without links
                with writing(new):
                    shutil.copyfile(self._latest, new)
            os.replace(new, self.folder / "best.pt")
            new.unlink(missing_ok=True)  # rename leaves it where both are links to one file already

    def restore(self, result: Any) -> Any:
        """Loads the checkpoint that the `resume` option names, if there is one; returns the loader's state."""
        path, state = self._wanted()
        training = self.training
        if state is not None:
            with naming(path):
                training.load_state_dict(state["training"])
            vars(result).update(state["result"])
            self.has_resumed, self.owes_validation = True, not state["validated"]
            if len(state["random"]) == training.ranks.world_size:
                self._resumed = state["random"][training.ranks.rank]
        self._check_output_dir(path)
        self._check_same_place()
        if path is not None and result.epochs and training.batch == 0 and not self.owes_validation:
            self._latest = path if training.ranks.is_main else None
            self.keep_best(result)  # the run may have been killed between saving and this choice
        if training.ranks.is_main and training.options.resume is not None:
            self._say_what_was_resumed(path, state)
        return state["loader"] if state is not None else None

    def _say_what_was_resumed(self, path: Path | None, state: dict[str, Any] | None) -> None:
        training = self.training
        if path is None or state is None:
            print(f"no checkpoint to resume in {self.folder}; starting from the beginning")
            return
        place = f"epoch {training.epoch}, batch {training.batch}, after {training.updates} updates"
        done = "; the run had already finished" if training.epoch >= training.options.epochs else ""
        if self.owes_validation:
            done = f"; epoch {training.epoch - 1} has not been validated yet"
        print(f"resumed {path}: {place}{done}")
        given = asdict(training.options)
        changed = [name for name, value in state["options"].items() if name not in _FREE and given.get(name) != value]
        if changed:
            told = ", ".join(f"{name} was {state['options'][name]!r}, now {given.get(name)!r}" for name in changed)
            warnings.warn(f"resuming {path.name} with other options: {told}", stacklevel=users_level())

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Makes SIGTERM and SIGUSR1 save a checkpoint and stop the run; only in the main thread."""
        in_main = threading.current_thread() is threading.main_thread()
        known = [getattr(signal, name) for name in _SIGNALS if in_main and hasattr(signal, name)]
        before = {number: signal.signal(number, self._note_signal) for number in known}
        try:
            yield
            if self._vote is not None:  # nobody leaves before the last votes are counted
                self._vote.is_yes()
        finally:
            self._vote = None
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note_signal(self, number: int, frame: Any) -> None:
        self._signalled = True

    def _wanted(self) -> tuple[Path | None, dict[str, Any] | None]:
        """The checkpoint to resume, and what it holds; rank 0 sets damaged ones aside before the others look."""
        wanted, ranks = self.training.options.resume, self.training.ranks
        if wanted is None:
            return None, None
        if wanted != "auto":
            return Path(wanted), load_checkpoint(wanted)
        if ranks.is_main:
            found = newest_intact(self._kept())
        ranks.largest(0)  # waits for rank 0
        if not ranks.is_main:
            path = max(self._kept(), default=None)
            found = path, load_checkpoint(path) if path is not None else None
        return found

    def _random_states(self, loader: Any) -> list[dict[str, Any]]:
        """Random states of every process, by rank: now, and when its epoch began."""
        own = {"now": random_state(loader, self.training.device), "began": self._began}
        if self.training.ranks.world_size == 1:
            return [own]
        states: list[Any] = [None] * self.training.ranks.world_size
        dist.all_gather_object(states, own)
        return states

    def begin_epoch(self, loader: Any) -> None:
        """Called before an epoch's iterator is made; restores the random states with which a resumed epoch began."""
        if self._resumed is not None and self.training.batch == 0:
            set_generators(self._resumed["now"], loader)
            self.restore_random()
        elif self._resumed is not None and not hasattr(loader, "load_state_dict"):
            set_generators(self._resumed["began"], loader)
            set_random_state(self._resumed["began"], self.training.device)
        self._began = random_state(loader, self.training.device)

    def begin_validation(self, loader: Any, loader_state: Any) -> None:
        """Restores the state before a validation that the interrupted run had still to do."""
        self.owes_validation = False
        if loader_state is not None and hasattr(loader, "load_state_dict"):
            loader.load_state_dict(loader_state)
        if self._resumed is not None:
            set_generators(self._resumed["now"], loader)
        self.restore_random()

    def restore_random(self) -> None:
        """Restores the random states of the loaded checkpoint, once."""
        if self._resumed is not None:
            set_random_state(self._resumed["now"], self.training.device)
        elif self.has_resumed:  # with another number of processes no process can continue the random state of another
            seed_anew(self.training.options.seed + 1000 * self.training.updates + self.training.ranks.rank)
        self.has_resumed, self._resumed = False, None

    def _check_output_dir(self, resumed: Path | None) -> None:
        """A folder with later checkpoints is another run's, whose files this one would mix with its own."""
        later = [path for path in self._kept() if int(path.stem.rpartition("-")[2]) > self.training.updates]
        if not later:
            return
        if resumed is not None and resumed.resolve().parent == later[0].resolve().parent:
            raise TrainError(
                f"{resumed} is not the latest checkpoint in its folder; to go back to it remove "
                f"{', '.join(path.name for path in later)}, to continue from the latest use resume='auto'"
            )
        raise TrainError(
            f"output_dir {self.folder} holds checkpoints of another run, up to {later[-1].name}; continue that run "
            "with resume='auto', or use another output_dir"
        )

    def _kept(self) -> list[Path]:
        return [] if self.folder is None else sorted(self.folder.glob("checkpoint-[0-9]*.pt"))

    def _check_finite(self) -> None:
        """Refuses to save weights that are NaN or inf."""
        weights = self.training.model.parameters()  # buffers may hold infinities on purpose, as masks do
        is_finite = bool(torch.stack([weight.isfinite().all() for weight in weights]).all())  # waits
        if self.training.ranks.largest(not is_finite):
            last = f"; the latest checkpoint without them is {kept[-1].name}" if (kept := self._kept()) else ""
            raise TrainError(
                f"weights are NaN or inf after update {self.training.updates}, so no checkpoint was saved{last}; try a "
                "lower lr, a warm-up or clip_grad_norm, and find the cause with detect_anomaly=True"
            )

    def _check_same_place(self) -> None:
        updates, ranks = self.training.updates, self.training.ranks
        if ranks.largest(updates) != -ranks.largest(-updates):
            raise TrainError(
                f"rank {ranks.rank} would start at update {updates}, but other ranks at another; output_dir must be a "
                "folder that all machines share"
            )

    def stop_message(self) -> str:
        """The message of a run that was stopped by a signal."""
        kept = "nothing was saved, since output_dir is not set"
        if self.folder is not None:
            kept = f"checkpoint saved in {self.folder}; continue with resume='auto'"
        return f"stopped by a signal after {self.training.updates} updates; {kept}"


def _state_of(loader: Any) -> Any:
    """The loader's state, after a check that torch.load can read it again."""
    if not hasattr(loader, "state_dict"):
        return None
    state, file = loader.state_dict(), io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    try:
        torch.load(file, weights_only=True)
    except pickle.UnpicklingError as error:
        raise TrainError(
            f"the state_dict of {type(loader).__name__} holds more than numbers, strings, lists, dicts and tensors, so "
            "a checkpoint with it could not be loaded again"
        ) from error
    return state
