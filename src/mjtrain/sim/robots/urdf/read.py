"""Read a URDF with MuJoCo, after meshes are found, values that cannot be meant are refused, and doubts are reported."""

import math
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import mujoco

from mjtrain.config.robot import ImportConfig
from mjtrain.runtime.errors import RequestError

MESH_SUFFIXES = (".stl", ".obj", ".msh")
"""Meshes that MuJoCo reads."""

_MOVING = ("revolute", "prismatic", "continuous")
"""Types of joints that may mimic others, and be mimicked."""

_MEASURED = ("origin", "axis", "mass", "inertia", "box", "sphere", "cylinder", "capsule", "mesh", "dynamics", "mimic")
"""Elements of links and joints whose numbers a robot cannot do without; a limit that is NaN is none."""

_LFS = b"version https://git-lfs"

_TWO_TURNS_RAD = 4 * math.pi
"""Limits of revolute joints beyond this are probably in degrees, and beyond _NO_LIMIT_RAD none are meant."""

_NO_LIMIT_RAD = 1000.0


def read_urdf(file: Path, config: ImportConfig) -> tuple[Any, list[str], list[str]]:
    """Read a URDF with its visual geometry, and a body for each of its links.

    Returns:
        An `mujoco.MjSpec`, the names of its root links, and a line for each thing that was found elsewhere or left out.
    """
    root = _parse(file)
    _check_text(file, root)
    notes = [*_Meshes(file, config).place(root), *_put_on_world(root)]
    extension = root.find("mujoco")
    if extension is None:
        extension = ET.SubElement(root, "mujoco")
    compiler = extension.find("compiler")
    if compiler is None:
        compiler = ET.SubElement(extension, "compiler")
    compiler.attrib.update(discardvisual="false", fusestatic="false", strippath="false")
    compiler.attrib.pop("meshdir", None)
    text = ET.tostring(root, encoding="unicode")
    try:
        spec = mujoco.MjSpec.from_string(text)
    except ValueError as error:
        words = _name_owner(" ".join(str(error).split()), text)
        values = (value for element in root.iter() for value in element.attrib.values())
        if left := [value for value in values if _has_expression(value)]:
            words = _describe_xacro(file, f"expressions ({left[0]})")
        raise RequestError(f"{file}: {words}") from error
    notes += _settle_joints(root, spec)
    children = {child.get("link") for child in root.findall("joint/child")}
    return spec, [name for link in root.findall("link") if (name := link.get("name", "")) not in children], notes


def _name_owner(words: str, text: str) -> str:
    """Say in which link or joint an error is, in place of its line, which is one of this text and not of the file."""
    line = re.search(r", line (\d+)", words)
    if line is None:
        return words
    words, lines = words.replace(line.group(), ""), text.split("\n")[: int(line.group(1))]
    named = re.compile(r"""<(link|joint|mujoco)\b(?:[^>]*?\sname="([^"]*)")?""")
    if len(named.findall(lines[-1])) > 1:  # which of them is not known
        return words
    kind, name = (named.findall("\n".join(lines)) or [("", "")])[-1]
    return words + (f", in {kind} {name}" if name else "")


def is_urdf(file: Path) -> bool:
    """Whether a file is one by its root element."""
    return _parse(file, any_kind=True).tag == "robot"


def _parse(file: Path, *, any_kind: bool = False) -> ET.Element:
    try:
        root = ET.parse(file).getroot()
    except OSError as error:
        raise RequestError(f"{file}: {error.strerror}") from error
    except (ET.ParseError, ValueError, LookupError) as error:  # of an unknown encoding, too
        if any_kind and file.suffix == ".xml":  # MuJoCo reads MJCF that is not well-formed
            return ET.Element("mujoco")
        raise RequestError(f"{file}: is not XML ({error})") from error
    if any_kind:
        return root
    if root.tag != "robot":
        raise RequestError(f"{file}: is not a URDF, because its root is <{root.tag}> and not <robot>")
    if any("xacro" in element.tag for element in root.iter() if isinstance(element.tag, str)):
        raise RequestError(f"{file}: {_describe_xacro(file, 'macros')}")
    return root


def _has_expression(value: str) -> bool:
    return "${" in value or "$(" in value


def _describe_xacro(file: Path, what: str) -> str:
    out = "expanded.urdf" if file.name == "robot.urdf" else "robot.urdf"
    return f"has xacro {what}; expand them first: xacro {file.name} > {out}"


def _put_on_world(root: ET.Element) -> Iterator[str]:
    """Call the root link world if a floating joint hangs on it: MuJoCo has free joints on children of the world."""
    floating = [joint for joint in root.findall("joint") if joint.get("type") == "floating"]
    children = {child.get("link") for child in root.findall("joint/child")}
    for joint in floating:
        parent = joint.find("parent")
        name = None if parent is None else parent.get("link")
        if name in children or name == "world":
            continue
        for element in root.iter():
            for tag, attribute in (("link", "name"), ("parent", "link")):
                if element.tag == tag and element.get(attribute) == name:
                    element.set(attribute, "world")
        yield f"link {name} is the world, because the floating joint {joint.get('name')} hangs on it"


class _Meshes:
    """Puts the path of each mesh on this machine into a URDF."""

    def __init__(self, file: Path, config: ImportConfig) -> None:
        self._file, self._config = file.absolute(), config
        self._folder = self._file.parent if config.mesh_dir is None else Path(config.mesh_dir).absolute()
        if not self._folder.is_dir():
            raise RequestError(f"--mesh-dir {config.mesh_dir}: no such folder")
        self._by_name: dict[str, list[Path]] | None = None

    def place(self, root: ET.Element) -> Iterator[str]:
        """Yield a line for meshes that were found elsewhere, and for those that are left out, which are removed."""
        lost: dict[str, dict[str, None]] = {}
        elsewhere: dict[str, Path] = {}
        for link in root.iter("link"):
            for kind in ("visual", "collision"):
                for element in link.findall(kind):
                    mesh = element.find("geometry/mesh")
                    if mesh is None:
                        continue
                    name = mesh.get("filename", "")
                    path, is_guess = self._find(name)
                    is_readable = (path or Path(name)).suffix.lower() in MESH_SUFFIXES
                    if path is not None and is_readable and _is_lfs_pointer(path):
                        raise RequestError(f"{path}: is a pointer of Git LFS, not a mesh; run git lfs pull where it is")
                    if path is None or not is_readable:
                        lost.setdefault("missing" if is_readable else kind, {})[name] = None
                        link.remove(element)
                        continue
                    mesh.set("filename", str(path))
                    if is_guess:
                        elsewhere[name] = path
        yield from self._describe_lost(lost)
        if elsewhere:
            name, path = next(iter(elsewhere.items()))
            others = f", and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else ""
            yield f"meshes found by their names only: {name} is {path}{others}"

    def _describe_lost(self, lost: dict[str, dict[str, None]]) -> Iterator[str]:
        words = ", ".join(MESH_SUFFIXES)
        for kind, names in lost.items():
            first = ", ".join(list(names)[:3]) + (", …" if len(names) > 3 else "")
            what = f"{len(names)} {'mesh' if len(names) == 1 else 'meshes'} ({first})"
            if kind != "visual" and not self._config.leave_out_unreadable:
                advice = f"convert them to one of {words}"
                if kind == "missing":
                    advice = f"they are not below {self._folder}; give --mesh-dir"
                raise RequestError(f"{self._file.name}: {what} cannot be read: {advice}, or --leave-out-unreadable")
            if kind == "visual":
                yield f"{what} of <visual> left out: MuJoCo reads {words}; collision geometry is shown in their place"
            else:
                yield f"{what} left out{' of <collision>' if kind == 'collision' else ', because they are missing'}"

    def _find(self, name: str) -> tuple[Path | None, bool]:
        """Return the file of a mesh, and whether only its name says so."""
        ways = list(dict.fromkeys([name, unquote(name), unquote(name).replace("\\", "/")]))  # of URLs, and of Windows
        placed = (path for way in ways for path in self._list_places(way) if path.is_file())
        if (path := next(placed, None)) is not None:
            return path, False
        return next((path for way in ways if (path := self._find_by_name(way)) is not None), None), True

    def _list_places(self, name: str) -> Iterator[Path]:
        """Yield where a mesh may be by its path."""
        package, relative = _split(name)
        folders = [self._folder, self._file.parent]
        if package is not None:
            folders += [folder for folder in self._file.parents if folder.name == package]
            folders += [folder / package for folder in (self._folder, *self._file.parents)]
        if relative.name:
            yield from (folder / relative for folder in folders)

    def _find_by_name(self, name: str) -> Path | None:
        """Return the mesh of this name, in upper or lower case, or of the same name in another format."""
        if self._by_name is None:
            wide = self._config.mesh_dir is None and self._folder.name in ("urdf", "robots", "xacro")
            base = self._folder.parent if wide else self._folder
            self._by_name = {}
            for path in sorted(base.rglob("*")):
                if path.is_file():
                    self._by_name.setdefault(path.name.casefold(), []).append(path)
        relative = _split(name)[1]
        names = [relative, *(relative.with_suffix(suffix) for suffix in MESH_SUFFIXES if relative.name)]
        tries = (self._nearest(name, spell) for spell in (str, str.casefold) for name in names)
        return next((path for path in tries if path is not None), None)

    def _nearest(self, relative: Path, spell: Callable[[str], str]) -> Path | None:
        """Return the file of this name whose path ends like the one in the URDF for the most parts."""
        assert self._by_name is not None
        wanted = Path(spell(str(relative)))
        ends = {path: Path(spell(str(path))) for path in self._by_name.get(relative.name.casefold(), [])}
        found = [path for path, end in ends.items() if end.name == wanted.name]
        return max(found, key=lambda path: _count_equal_ends(ends[path], wanted), default=None)


def _split(name: str) -> tuple[str | None, Path]:
    """Split the name of a mesh into its package, which is None if it is not a package:// URL, and the path."""
    if name.startswith("package://"):
        package, _, rest = name.removeprefix("package://").partition("/")
        return package, Path(rest)
    return None, Path(name.removeprefix("file://"))


def _count_equal_ends(first: Path, second: Path) -> int:
    pairs = zip(reversed(first.parts), reversed(second.parts), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _check_text(file: Path, root: ET.Element) -> None:
    """Refuse numbers that are not finite, names that are given twice or are not names, and negative damping."""
    moving = [joint for joint in root.findall("joint") if joint.get("type") != "fixed"]  # MuJoCo drops fixed ones
    for tag, elements in (("link", root.findall("link")), ("joint", moving)):
        for name, times in Counter(element.get("name") for element in elements).items():
            if name and times > 1:
                raise RequestError(f"{file}: has {times} {tag}s with the name '{name}'; rename them")
            if name == "":
                raise RequestError(f"{file}: has a {tag} with an empty name; give it one")
            if name and _has_expression(name):
                raise RequestError(f"{file}: {_describe_xacro(file, f'expressions ({name})')}")
    for owner in (*root.findall("link"), *root.findall("joint")):
        for element in (element for element in owner.iter() if element.tag in _MEASURED):
            for attribute, value in element.attrib.items():
                if attribute not in ("filename", "joint") and re.search(r"\b(nan|inf(inity)?)\b", value, re.I):
                    raise RequestError(
                        f"{file}: {owner.tag} {owner.get('name')} has {attribute} '{value}' in its <{element.tag}>; "
                        "give numbers"
                    )
    for joint in moving:
        for what in ("damping", "friction"):
            if (value := _number(joint.find("dynamics"), what)) < 0:
                raise RequestError(f"{file}: joint {joint.get('name')} has {what} {value:g}; give at least 0")


def _settle_joints(root: ET.Element, spec: Any) -> Iterator[str]:
    """Remove ranges that are not finite, and yield lines about limits and mimics that are not as the file has them."""
    moving = {joint.get("name", ""): joint for joint in root.findall("joint") if joint.get("type") in _MOVING}
    unlimited, unused, degrees = [], [], []
    for name, joint in moving.items():
        limit = joint.find("limit")
        given = {} if limit is None else limit.attrib
        words = f"{name} (lower {given.get('lower', 'not given')}, upper {given.get('upper', 'not given')})"
        if joint.get("type") == "continuous":
            if _number(limit, "lower") < _number(limit, "upper"):
                unused.append(words)
        else:
            low, high = spec.joint(name).range
            if not (low < high and math.isfinite(high - low)):
                spec.joint(name).range = (0, 0)
                unlimited.append(words)
            elif joint.get("type") == "revolute" and _TWO_TURNS_RAD < max(-low, high) < _NO_LIMIT_RAD:
                degrees.append(words)
        mimic = joint.find("mimic")
        if mimic is not None and (leader := mimic.get("joint", "")) not in moving:
            yield (
                f"mimics: {name} moves by itself, because {leader}, which it mimics, is not the name of a revolute, "
                "continuous or prismatic joint"
            )
    if unlimited:
        yield f"ranges: no limits, because lower is not below upper, or one is not finite: {', '.join(unlimited)}"
    if unused:
        yield f"ranges: no limits, because they are continuous; revolute ones have limits: {', '.join(unused)}"
    if degrees:
        yield f"ranges: more than two turns, as if in degrees; they are used in rad: {', '.join(degrees)}"


def _is_lfs_pointer(path: Path) -> bool:
    """Whether a file is what Git LFS leaves in place of one that it has not fetched."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(_LFS)) == _LFS
    except OSError:  # MuJoCo says so when it reads the mesh
        return False


def _number(element: ET.Element | None, attribute: str) -> float:
    """Return a number of a file; NaN, which compares with nothing, where it has none."""
    try:
        return math.nan if element is None else float(element.get(attribute, ""))
    except ValueError:
        return math.nan
