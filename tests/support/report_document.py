"""What a run's report.html shows: the document in it, as runtime/report/report.h describes it."""
import json
import re


def document_of(path):
    return json.loads(re.search(r'<script type="application/json" id="run">(.*?)</script>', path.read_text(), re.DOTALL)[1])


def curve_of(document, title, series="train"):
    """The points of a curve, [x, value] each while they are few."""
    chart = next(chart for chart in document["charts"] if chart["title"] == title)
    return next(one["points"] for one in chart["series"] if one["name"] == series)
