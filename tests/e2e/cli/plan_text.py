"""What `meshtrain plan` prints."""
import re


def gathers_of(plan):
    """The values that a step gathers, by name, in the order of the plan: states and inputs by their own names, what a layer
    computes as `op (layer)`."""
    lines = plan.splitlines()
    names = []
    for line, value in zip(lines, lines[1:]):
        if re.match(r"  (\w+ \+ )*all_gather( \+ \w+)*\s+\{", line):
            names.append(re.match(r" +%\d+ \S+ of (?:state |input )?(.+?) ?(?:at \S+)?: ", value)[1])
    return names
