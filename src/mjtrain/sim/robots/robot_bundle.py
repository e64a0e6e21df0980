"""A robot's MJCF as files that depend on no other: includes merged, meshes and images beside it.

A robot in a file is copied by its XML alone, so that a launcher needs no MuJoCo for it. A robot that a function builds
needs MuJoCo, and so does the comparison of a robot with its copy.
"""

import hashlib
import re
import tempfile
import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import unescape

from mjtrain.config import RobotConfig

ASSETS_DIR = "assets"
"""Folder of the files that an MJCF file refers to, each in a folder named after its content."""

_MESH_DIR, _TEXTURE_DIR = "meshdir", "texturedir"
_IMAGE_ATTRIBUTES = ("file", "fileright", "fileleft", "fileup", "filedown", "filefront", "fileback")
_FILE_ATTRIBUTES = {
    "mesh": (_MESH_DIR, ("file",)),
    "hfield": (_MESH_DIR, ("file",)),
    "skin": (_MESH_DIR, ("file",)),
    "flexcomp": (_MESH_DIR, ("file",)),
    "texture": (_TEXTURE_DIR, _IMAGE_ATTRIBUTES),
    "model": ("", ("file",)),
}
"""Which elements of MJCF name files: the compiler setting that says where they are, and the attributes."""

_WRITTEN = 1e-4
"""Tolerance of numbers that MuJoCo has written, which have about six digits."""

_TOKEN = re.compile(
    r"""<!--.*?-->|<\?.*?\?>|<!\[CDATA\[.*?\]\]>|<![^>]*>|</(?P<end>[^\s>]+)\s*>
    |<(?P<begin>[^\s/>!?]+)(?P<attributes>(?:[^>"']|"[^"]*"|'[^']*')*?)(?P<empty>/?)>|[^<]+""",
    re.DOTALL | re.VERBOSE,
)
_ATTRIBUTE = re.compile(r"""\s*([^\s=/"']+)\s*=\s*("[^"]*"|'[^']*')\s*""", re.DOTALL)
_OTHER_ENCODING = re.compile(rb"""<\?xml[^>]*encoding\s*=\s*["'](?!utf-?8["'])""", re.IGNORECASE)


class RobotBundleError(ValueError):
    """The robot cannot be copied; the message says why."""


def bundle_robot(robot: Path) -> dict[str, bytes]:
    """Collect the files of a robot in MJCF.

    Returns:
        Content by relative path. The first one is the MJCF file itself under its own name, with all includes merged and
        without comments; the others are what it refers to. Equal robots give equal bundles, and a bundle that was
        written to a folder gives itself again.

    Raises:
        RobotBundleError: A file is missing, or the one of the robot is not valid MJCF.
    """
    assets: dict[str, bytes] = {}
    merged = _merge(robot.absolute(), assets)
    return {robot.name: merged, **assets}


def bundle_built_robot(robot: RobotConfig) -> dict[str, bytes]:
    """Collect the files of a robot that a function builds, as `bundle_robot` does for one in a file.

    Raises:
        RobotBundleError: A file that the robot needs cannot be found.
    """
    from mjtrain.sim.robots.model import open_robot  # imports MuJoCo

    spec = open_robot(robot)
    try:
        spec.compile()
        root = ET.fromstring(spec.to_xml())
    except ValueError as error:
        raise RobotBundleError(f"{robot.label} cannot be written as MJCF ({' '.join(str(error).split())})") from error
    folders = {"": "", "meshdir": spec.compiler.meshdir, "texturedir": spec.compiler.texturedir}
    for compiler in root.iter("compiler"):
        for setting in ("meshdir", "texturedir", "assetdir"):
            compiler.attrib.pop(setting, None)
    with tempfile.TemporaryDirectory() as folder:
        for number, (element, attribute, kind) in enumerate(find_file_attributes(root)):
            name = element.attrib[attribute]
            path = Path(folder, str(number), Path(name).name)
            path.parent.mkdir()
            path.write_bytes(_read_asset(spec, folders[kind], name, robot))
            element.set(attribute, str(path))
        main = Path(folder, robot.file_name)
        main.write_bytes(ET.tostring(root, encoding="utf-8"))
        return bundle_robot(main)


def _read_asset(spec: Any, folder: str, name: str, robot: RobotConfig) -> bytes:
    for key in (name, f"{folder}/{name}", Path(name).name):
        if key in spec.assets:
            content = spec.assets[key]
            return content if isinstance(content, bytes) else content.encode()
    for path in (Path(spec.modelfiledir, folder, name), Path(folder, name), Path(name)):
        if path.is_file():
            return path.read_bytes()
    raise RobotBundleError(f"{name}, a file that {robot.label} uses, is not in the assets of its MjSpec")


def list_copy_differences(robot: RobotConfig, copy: Path) -> list[str]:
    """Compile a robot and its copy, and return the fields that differ, see `list_differences`.

    Numbers of a robot in a file are compared bit by bit, and those of one that a function builds to `_WRITTEN`.

    Raises:
        ValueError: One of them is not a valid model.
    """
    from mjtrain.sim.robots.model import open_robot

    models = (open_robot(source).compile() for source in (robot, RobotConfig(file=str(copy))))
    with warnings.catch_warnings(category=UserWarning, action="ignore"):  # said where the robot is checked
        return list_differences(*models, tolerance=0.0 if robot.file else _WRITTEN)


def list_differences(first: Any, second: Any, tolerance: float = 0.0) -> list[str]:
    """Return the fields in which two compiled models differ, where files lie and names of the models aside.

    Args:
        tolerance: Largest difference of numbers, relative to the largest of the field; 0: they are compared bit by bit.
    """
    import numpy as np

    found = []
    parts = (("", first, second), ("opt.", first.opt, second.opt), ("stat.", first.stat, second.stat))
    for prefix, one, other in parts:
        for name in dir(one):
            value, others = getattr(one, name), getattr(other, name)
            if name.startswith("_") or "path" in name or name == "nbuffer":  # where files lie, and how long that is
                continue
            is_number = isinstance(value, np.ndarray | int | float | bytes)
            if is_number and not _is_equal(np.asarray(value), np.asarray(others), tolerance):
                found.append(prefix + name)
    if not tolerance and str(first.vis) != str(second.vis):  # a structure of structures of numbers
        found.append("vis")
    return found


def _is_equal(first: Any, second: Any, tolerance: float) -> bool:
    if not tolerance or first.shape != second.shape or first.dtype.kind != "f":
        return first.tobytes() == second.tobytes()
    largest = max((float(abs(item).max(initial=0.0)) for item in (first, second)), default=0.0)
    return bool((abs(first - second) <= tolerance * largest).all())


def find_file_attributes(root: ET.Element) -> Iterator[tuple[ET.Element, str, str]]:
    """Yield element, attribute and compiler setting (see `_FILE_ATTRIBUTES`) wherever an MJCF file names a file."""
    for element in root.iter():
        kind, attributes = _FILE_ATTRIBUTES.get(str(element.tag), ("", ()))
        for attribute in attributes:
            if element.get(attribute):
                yield element, attribute, kind


def list_references(data: bytes, label: str) -> list[str]:
    """Return what the content of an MJCF file names as files, which MuJoCo looks for in the folder of the file.

    Raises:
        RobotBundleError: It is not XML, or has MuJoCo look in other folders, as files of a bundle do not.
    """
    root = _parse_data(data, label)
    for compiler in root.iter("compiler"):
        if {"assetdir", _MESH_DIR, _TEXTURE_DIR, "strippath"} & compiler.attrib.keys():
            raise RobotBundleError(f"{label} has MuJoCo look for files in another folder")
    return [value for element in root.iter() for key, value in element.attrib.items() if key.startswith("file")]


def check_loops(robot: Path) -> None:
    """Raise a RobotBundleError if a file includes or attaches itself, by way of others too."""
    data = _read(robot)
    if b"<include" in data or b"<model" in data:
        _walk(robot.absolute(), robot.absolute().parent, ())


def _walk(path: Path, main_folder: Path, chain: tuple[Path, ...]) -> None:
    """Visit the files that a file includes or attaches; the chain leads to it."""
    chain = _extend(chain, path)
    try:
        root = _parse(path)
    except RobotBundleError:
        return  # MuJoCo says what is wrong
    for element in root.iter():
        if element.tag in ("include", "model") and element.get("file"):
            for place in dict.fromkeys((main_folder, path.parent)):
                if (file := place / element.get("file", "")).is_file():
                    _walk(file, main_folder if element.tag == "include" else file.parent, chain)
                    break


def _extend(chain: tuple[Path, ...], path: Path) -> tuple[Path, ...]:
    resolved = path.resolve()
    if resolved in chain:
        files = " -> ".join(link.name for link in (*chain[chain.index(resolved) :], resolved))
        raise RobotBundleError(f"the file includes or attaches itself: {files}")
    return (*chain, resolved)


def _merge(path: Path, assets: dict[str, bytes], *, is_attached: bool = False, chain: tuple[Path, ...] = ()) -> bytes:
    """Return an MJCF file that refers to nothing but `assets`, to which the files that it needs are added."""
    chain = _extend(chain, path)
    root = _parse(path)
    if root.tag != "mujoco":
        raise RobotBundleError(f"{path} is not an MJCF file: its outermost element is <{root.tag}>")
    _merge_includes(root, path.parent, path.parent, chain)
    folders, strips_path = _read_compiler(root, path.parent)
    strips_path = strips_path and not is_attached  # MuJoCo ignores the setting there
    prefix = "../" if is_attached else f"{ASSETS_DIR}/"
    for element, attribute, kind in find_file_attributes(root):
        name = element.attrib[attribute]
        file = folders[kind] / (Path(name).name if strips_path else name)
        element.set(attribute, prefix + _add_asset(file, element.tag, assets, chain))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode").encode("utf-8", "surrogateescape") + b"\n"


def _add_asset(path: Path, kind: str, assets: dict[str, bytes], chain: tuple[Path, ...]) -> str:
    """Add a file, and return its name in the folder of the assets."""
    content = _merge(path, assets, is_attached=True, chain=chain) if kind == "model" else _read(path)
    name = f"{hashlib.sha256(content).hexdigest()[:12]}/{path.name}"  # MuJoCo names a mesh or a texture after it
    assets[f"{ASSETS_DIR}/{name}"] = content
    return name


def _merge_includes(parent: ET.Element, main_folder: Path, folder: Path, chain: tuple[Path, ...]) -> None:
    """Put the content of included files where they are included; MuJoCo looks in the main file's folder first."""
    merged: list[ET.Element] = []
    for child in parent:
        if child.tag == "include":
            name = child.get("file", "")
            places = [place / name for place in (main_folder, folder) if (place / name).is_file()]
            if not places:
                raise RobotBundleError(f"{main_folder / name}: no such file")
            included = _parse(places[0])
            _merge_includes(included, main_folder, places[0].parent, _extend(chain, places[0]))
            merged += included
        else:
            _merge_includes(child, main_folder, folder, chain)
            merged.append(child)
    parent[:] = merged


def _read_compiler(root: ET.Element, main_folder: Path) -> tuple[dict[str, Path], bool]:
    """Take the settings about files out of <compiler>; the last one of each counts, as in MuJoCo."""
    folders = {_MESH_DIR: main_folder, _TEXTURE_DIR: main_folder, "": main_folder}
    strips_path = False
    for compiler in root.iter("compiler"):
        both = compiler.attrib.pop("assetdir", None)
        for name in (_MESH_DIR, _TEXTURE_DIR):
            value = compiler.attrib.pop(name, both)
            if value is not None:
                folders[name] = main_folder / value
        strips_path = compiler.attrib.pop("strippath", str(strips_path).lower()) == "true"
    return folders, strips_path


def _parse(path: Path) -> ET.Element:
    return _parse_data(_read(path), str(path))


def _parse_data(data: bytes, path: str) -> ET.Element:
    """Read XML as MuJoCo does, which takes files that are not well-formed and does not look at the encoding."""
    try:
        if not _OTHER_ENCODING.search(data[:200]):
            return ET.fromstring(data)
        return _parse_leniently(data)
    except ET.ParseError as error:
        try:
            return _parse_leniently(data)
        except ET.ParseError:
            raise RobotBundleError(f"{path} cannot be read as XML ({error})") from error


def _parse_leniently(data: bytes) -> ET.Element:
    """Read XML with hyphens in comments, or no space between attributes; bytes that are not UTF-8 are kept."""
    text = data.decode("utf-8-sig", "surrogateescape")
    builder, opened, position = ET.TreeBuilder(), [], 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None:
            raise ET.ParseError(f"no valid token at character {position}")
        position = token.end()
        if token["end"]:
            if not opened or opened.pop() != token["end"]:
                raise ET.ParseError(f"</{token['end']}> closes another element")
            builder.end(token["end"])
        elif token["begin"]:
            attributes: dict[str, str] = {}
            rest = token["attributes"]
            while rest.strip():
                found = _ATTRIBUTE.match(rest)
                if found is None:
                    raise ET.ParseError(f"<{token['begin']}> has an attribute without a value")
                attributes.setdefault(found[1], unescape(found[2][1:-1], {"&quot;": '"', "&apos;": "'"}))
                rest = rest[found.end() :]
            builder.start(token["begin"], attributes)
            opened.append(token["begin"])
            if token["empty"]:
                builder.end(opened.pop())
        else:
            continue
        if not opened:
            break  # MuJoCo reads the first element only
    if opened:
        raise ET.ParseError(f"<{opened[-1]}> is not closed")
    return builder.close()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RobotBundleError(f"{path}: no such file") from None
    except OSError as error:
        raise RobotBundleError(f"{path} cannot be read ({error.strerror})") from error
