"""The text of `zero options`: a list for people, or the page docs/options.md.

Words: list | page"""

from output import Lines, Report, show

TITLES = ("zero_engine_options", "zero_tuning")
INTROS = ("What users set. `zero_engine_options_init()` fills it, then fields are assigned.",
          "What only a few runs need: `zero_tuning_init()`, then `options.tuning = &tuning`.")
PAGE_HEAD = (
    "# Options",
    "",
    "*For those who look up an option. Reference.*",
    "",
    "Printed by `zero options --markdown` from the table that also checks the options, compares "
    "them over the ranks and",
    "serves command lines (`zero/option.h`). 0 stands for the default wherever 0 is no value; the "
    "headers `zero/options.h`",
    "and `zero/tuning.h` say more of each.")


def number(option: Report, value: int) -> str:
    """8M rather than 8388608."""
    units = iter("KMGT")
    unit = ""
    while option["kind"] == "bytes" and value and value % 1024 == 0 and unit != "T":
        value, unit = value // 1024, next(units)
    return f"{value}{unit}"


def values(option: Report) -> str:
    kind, choices = option["kind"], ", ".join(option["choices"])
    if kind in ("count", "bytes", "number"):
        low = number(option, option["low"])
        return f"{low} or more" if option["high"] is None else (
            f"{low} to {number(option, option['high'])}")
    return {"flag": "0 or 1", "real": "0 or more", "choice": choices,
            "tiers": f"for each role: {choices}", "groups": f"for each group: {choices}",
            "pointer": "a pointer", "text": "text"}[kind]


def page(tables: list[list[Report]]) -> Lines:
    yield from PAGE_HEAD
    for title, intro, options in zip(TITLES, INTROS, tables):
        yield from ("", f"## {title}", "", intro, "")
        yield "| field | what | values | default | alike on all ranks |"
        yield "|---|---|---|---|---|"
        for option in options:
            alike = "yes" if option["same_on_ranks"] else ""
            yield (f"| `{option['name']}` | {option['text']} | {values(option)} | "
                   f"{option['default']} | {alike} |")


def listing(tables: list[list[Report]]) -> Lines:
    for title, options in zip(TITLES, tables):
        yield from ["", f"{title}:"] if title == TITLES[1] else [f"{title}:"]
        for option in options:
            yield f"  {option['name']:<22} {option['text']}"
            yield f"{'':25}{values(option)} [{option['default']}]"


def text(report: Report, form: str) -> Lines:
    tables = [[option for option in report["options"] if option["tuning"] == tuning]
              for tuning in (False, True)]
    return page(tables) if form == "page" else listing(tables)


def main(words: list[str]) -> int:
    return show(text, words)
