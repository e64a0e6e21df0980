"""The picture of a sweep: Optuna's plots, side by side."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import optuna
from optuna.trial import TrialState

from mjtrain.runtime.files import replacing

COLUMNS = 3


def draw_study(study: optuna.Study, metric: str, out: Path) -> None:
    """Draw a study, see `plot_study`."""
    import numpy as np
    from matplotlib import pyplot

    pictures: list[np.ndarray] = []
    for axes in plot_study(study, metric):
        axes.figure.canvas.draw()
        pictures.append(np.asarray(axes.figure.canvas.buffer_rgba()))
        pyplot.close(axes.figure)
    if pictures:
        pictures += [np.full_like(pictures[0], 255)] * (-len(pictures) % COLUMNS)
        rows = [np.hstack(pictures[first : first + COLUMNS]) for first in range(0, len(pictures), COLUMNS)]
        with replacing(out) as file:
            pyplot.imsave(cast(BinaryIO, file), np.vstack(rows), format=out.suffix[1:])


def plot_study(study: optuna.Study, metric: str) -> Iterator[Any]:
    """Yield the axes of a figure each: history, curves, importances, parallel coordinates, values over each setting.

    The latter are those of pruned trials too. Importances need several complete trials with different values.
    """
    import matplotlib
    from optuna.visualization import matplotlib as plots

    valued = optuna.create_study(direction=study.direction)
    for trial in study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED)):
        if trial.value is not None:
            trial.state = TrialState.COMPLETE
            valued.add_trial(trial)
    matplotlib.use("agg")  # without a window
    style: dict[Any, Any] = {"figure.figsize": (7.0, 5.0), "figure.constrained_layout.use": True}
    with warnings.catch_warnings(), matplotlib.rc_context(style):
        warnings.simplefilter("ignore")  # Optuna calls its plots experimental
        warnings.filterwarnings("error", message=".*importances will be equal")
        if valued.trials:
            yield plots.plot_optimization_history(study, target_name=metric)
            axes = plots.plot_intermediate_values(study)
            axes.legend().remove()  # a line for each trial
            yield axes
            with contextlib.suppress(ValueError, RuntimeError, UserWarning):
                yield plots.plot_param_importances(study, target_name=metric)
            yield plots.plot_parallel_coordinate(study, target_name=metric)
        for name in valued.trials[0].params if valued.trials else ():
            yield plots.plot_slice(valued, [name], target_name=metric)
