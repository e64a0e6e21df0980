"""Clips, the videos of them, and camera images as pictures for people: coloured, enlarged, and side by side."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np

from mjtrain.config import CameraConfig, StreamName
from mjtrain.runtime.files import replacing

LABEL_HEIGHT = 12
"""Rows above a tile for its name, in pixels."""

_WIDEST = 0.5
"""Width of all tiles, at most, as a fraction of the width of the main picture."""

_CLASS_COLORS = np.array(
    [
        (0, 0, 0),  # background
        (66, 105, 208),
        (239, 177, 24),
        (255, 114, 92),
        (108, 197, 176),
        (60, 169, 81),
        (255, 138, 183),
        (164, 99, 242),
        (151, 187, 245),
        (156, 107, 78),
        (148, 152, 160),
    ],
    dtype=np.uint8,
)


@dataclass(frozen=True, kw_only=True)
class CameraStream:
    """What a camera of the environment delivers."""

    camera: str
    """Name in `EnvConfig.cameras`."""

    stream: StreamName
    near_m: float
    far_m: float

    @property
    def label(self) -> str:
        """Name for people."""
        return f"{self.camera} {self.stream}"


def list_streams(cameras: Mapping[str, CameraConfig]) -> list[CameraStream]:
    """Return every stream of every camera, in the order of the config."""
    return [
        CameraStream(camera=name, stream=stream, near_m=camera.near_m, far_m=camera.far_m)
        for name, camera in cameras.items()
        for stream in camera.streams
    ]


@dataclass(frozen=True, kw_only=True)
class Clip:
    """The positions of one world over time."""

    qpos: np.ndarray
    """float32, shape (frames, nq)."""

    fps: float
    """Frames per second of simulated time."""

    iteration: int
    """Training iterations that the policy had done when the clip begins."""

    ghost: np.ndarray | None = None
    """Positions of a translucent second robot. float32, shape (frames, nq)."""

    images: dict[CameraStream, np.ndarray] = field(default_factory=dict)
    """What the policy saw, by camera and stream. Shape (frames, channels, height, width)."""


@dataclass(frozen=True, kw_only=True)
class Video:
    """A video that is done."""

    path: Path
    """MP4 file."""

    gif: Path | None
    """A smaller animated picture of the same, for TensorBoard."""

    iteration: int
    """Iterations that the run had when it begins, which may be a while ago."""

    cpu_s: float
    """CPU time that drawing and encoding took, in seconds; the first one includes the start of the process."""


def to_picture(stream: CameraStream, image: np.ndarray) -> np.ndarray:
    """Show an image in colours: rgb as it is, depth from white (near) to black (far), a colour for each class.

    Shape (channels, height, width), as `Cameras.images` has it, to uint8 of shape (height, width, 3).
    """
    if stream.stream == "rgb":
        return np.moveaxis(image, 0, 2)
    if stream.stream == "depth":
        nearness = (stream.far_m - image[0]) / (stream.far_m - stream.near_m)
        return np.repeat(np.round(255 * nearness.clip(0, 1)).astype(np.uint8)[:, :, None], 3, axis=2)
    indices = image[0].astype(int)
    return _CLASS_COLORS[np.where(indices == 0, 0, 1 + (indices - 1) % (len(_CLASS_COLORS) - 1))]


def scale(picture: np.ndarray, width: int, height: int) -> np.ndarray:
    """Enlarge a picture to at most a size by a whole factor, each pixel to a square; or leave out rows and columns."""
    factor = min(width // picture.shape[1], height // picture.shape[0])
    if factor >= 1:
        return picture.repeat(factor, axis=0).repeat(factor, axis=1)
    stride = max(-(-picture.shape[1] // width), -(-picture.shape[0] // height))
    return picture[::stride, ::stride]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where tiles go beside a main picture: in columns of equal cells on its right."""

    columns: int
    cell: tuple[int, int]
    """Width and height of a tile, at most, in pixels."""

    width: int
    """Width of all columns, in pixels; even, as video encoders want it."""

    def place(self, index: int) -> tuple[int, int]:
        """Return column and row of the first pixel of a tile's cell, below its label."""
        row, column = divmod(index, self.columns)
        return column * self.cell[0], row * (self.cell[1] + LABEL_HEIGHT) + LABEL_HEIGHT


def arrange(main: tuple[int, int], sizes: Sequence[tuple[int, int]]) -> Layout:
    """Choose the number of columns in which the tiles become largest; the smallest one of several.

    Sizes, of the main picture and of at least one image, are width and height in pixels.
    """
    widest, highest = (max(size[side] for size in sizes) for side in (0, 1))

    def cell(columns: int) -> tuple[int, int]:
        rows = -(-len(sizes) // columns)
        return max(1, int(_WIDEST * main[0]) // columns), max(1, main[1] // rows - LABEL_HEIGHT)

    def enlargement(columns: int) -> float:
        width, height = cell(columns)
        factor = min(width / widest, height / highest)
        return factor if factor < 1 else int(factor)

    columns = max(range(1, len(sizes) + 1), key=enlargement)
    blank = (np.zeros((height, width, 0), dtype=np.uint8) for width, height in sizes)
    shapes = [scale(picture, *cell(columns)).shape for picture in blank]
    width, height = max(shape[1] for shape in shapes), cell(columns)[1]
    return Layout(columns=columns, cell=(width, height), width=columns * width + columns * width % 2)


@contextmanager
def open_video(
    out: Path, size: tuple[int, int], fps: float, *, crf: int = 23, threads: int = 0
) -> Iterator[Callable[[np.ndarray], None]]:
    """Encode pictures of an even width and height as MP4, one with each call; the file appears when it is complete.

    Pictures are uint8, shape (height, width, 3). A higher crf is a worse and smaller video.
    """
    import av  # imports much that clips and tiles do not need

    with replacing(out) as whole, av.open(whole, "w", "mp4") as file:
        rate = Fraction(fps).limit_denominator(1000)  # a whole number would be another speed
        stream = file.add_stream("libx264", rate=rate, options={"preset": "veryfast", "crf": str(crf)})
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.codec_context.thread_count = threads
        yield lambda picture: file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        file.mux(stream.encode(None))


def write_video(pictures: Sequence[np.ndarray], out: Path, fps: float) -> None:
    """Encode pictures that another program has drawn; an odd row or column at the end is left out."""
    height, width = (size - size % 2 for size in pictures[0].shape[:2])
    with open_video(out, (width, height), fps) as add:
        for picture in pictures:
            add(np.ascontiguousarray(picture[:height, :width]))
