"""Cases, how they are drawn, and how they go to keras_rows.cc and come back."""
import dataclasses
import json
import pathlib
import struct
import subprocess
import zlib

import numpy as np

TYPES = {"F64": np.float64, "F32": np.float32, "I64": np.int64, "I32": np.int32, "U8": np.uint8, "BOOL": np.bool_}
NAMES = {np.dtype(numpy): name for name, numpy in TYPES.items()}
FLOATS = {"f32": np.float32, "f64": np.float64}


@dataclasses.dataclass
class Case:
    kind: str  # of keras_rows.cc
    row: str
    options: dict
    program: dict  # as a manifest has it
    given: dict  # arrays by keras_rows.cc's names
    want: dict  # likewise, Keras' numbers
    dtype: str
    seed: str
    training: bool = True
    # About how large what the numbers are sums of is, where that is more than they are themselves: a gradient may be 0
    # because its terms cancel.
    magnitude: float = 0
    unit: str = ""  # the type that numbers are rounded in, where it is not the case's
    name: str = ""  # as keras_rows.cc knows it

    def where(self):
        mesh = self.program.get("mesh")
        return "one device" if not mesh else " ".join(f"{axis}={size}" for axis, size in mesh.items())

    def __str__(self):
        options = json.dumps(self.options)
        layout = json.dumps(self.program["layout"]) if "layout" in self.program else ""
        said = f"{self.row} {options} {self.dtype} on {self.where()} {layout}".rstrip()
        return said + (f", {'in' if self.training else 'outside'} training" if self.kind == "layer" else "")


class Draw:
    """Draws what one configuration of a row is, and remembers what was drawn of all of its rows."""
    drawn = {}  # (row, option) -> {value: how often}

    def __init__(self, seed, row, number):
        self.seed = f"{seed}:{number}"
        self.row, self.number = row, number
        self.random = np.random.RandomState(zlib.crc32(f"{seed}/{row}/{number}".encode()))
        self.options = {}

    def integer(self, least, most):
        return int(self.random.randint(least, most + 1))

    def chance(self, of=0.5):
        return bool(self.random.rand() < of)

    def among(self, values):
        return values[self.integer(0, len(values) - 1)]

    def note(self, option, value, row=None):
        seen = Draw.drawn.setdefault((row or self.row, option), {})
        key = json.dumps(value)
        seen[key] = seen.get(key, 0) + 1

    def given(self):
        """Whether an option is given: none in the first configuration of a row, all in the second."""
        return self.number == 1 or (self.number > 1 and self.chance())

    def option(self, name, values, always=False):
        """Gives the option, or leaves it to both sides' defaults; those drawn least come first."""
        if not always and not self.given():
            return None
        seen = Draw.drawn.get((self.row, name), {})
        least = min(seen.get(json.dumps(value), 0) for value in values)
        value = self.among([value for value in values if seen.get(json.dumps(value), 0) == least])
        self.note(name, value)
        self.options[name] = value
        return value

    def normal(self, *dims, scale=1.0, shift=0.0):
        # Numbers of f32, so that both types begin with the same ones.
        return (self.random.randn(*dims) * scale + shift).astype(np.float32)


def widen(thing):
    """Keras' numbers of f32 where it takes a Python float for a constant of f64: makes them f64's."""
    for name, value in list(vars(thing).items()):
        if type(value) is float:
            setattr(thing, name, np.float64(value))
        elif isinstance(value, list) and value and all(type(v) is float for v in value):
            setattr(thing, name, [np.float64(v) for v in value])


def program_of(batch, model, loss, optimizer="sgd", **more):
    data = {"train": {"idx": {"images": "images", "labels": "labels"}}, "batch": batch}
    if more.get("mesh"):
        data["uneven"] = True
    program = {"data": data, "model": model, "loss": loss, "optimizer": optimizer}
    program.update({key: value for key, value in more.items() if value})
    return program


def write_safetensors(path, arrays):
    header, at, chunks = {}, 0, []
    for name, array in arrays.items():
        array = np.ascontiguousarray(array)
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(np.shape(arrays[name])),
                        "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
        chunks.append(array.tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(chunks))


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    arrays = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        arrays[name] = np.frombuffer(data[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def run_ours(program, cases, folder):
    """What ours says of each case: its arrays, or the error."""
    folder = pathlib.Path(folder)
    given = {}
    for number, case in enumerate(cases):
        case.name = str(number)
        given.update({f"{case.name}/{what}": array for what, array in case.given.items()})
    write_safetensors(folder / "given.safetensors", given)
    (folder / "cases.json").write_text(json.dumps([
        {"name": case.name, "kind": case.kind, "training": case.training, "program": case.program} for case in cases]))
    subprocess.run([program, str(folder)], check=True)
    arrays = read_safetensors(folder / "results.safetensors")
    said = json.loads((folder / "results.json").read_text())
    results = [{} for _ in cases]
    for name, array in arrays.items():
        number, what = name.split("/", 1)
        results[int(number)][what] = array
    return [said[case.name] or results[number] for number, case in enumerate(cases)]
