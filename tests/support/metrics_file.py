"""What a run's metrics.jsonl says."""
import json
import pathlib


def lines_of(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def steps_of(path):
    """The lines of training steps."""
    return [line for line in lines_of(path) if "loss" in line]


def validations_of(path):
    """The lines of validations."""
    return [line for line in lines_of(path) if "loss" not in line]
