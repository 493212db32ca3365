"""The palette: what it says can be read in both themes, and no code draws with colours of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kvtrail.dashboard import palette
from kvtrail.dashboard.content import charts
from kvtrail.dashboard.palette import BACKGROUND, GREY, GROUPS, SECONDARY, TEXT, Colour
from kvtrail.tracer.ledger.phases import WORDS
from kvtrail.tracer.model.findings import Severity, Verdict
from kvtrail.tracer.model.markers import MarkerKind

DASHBOARD = Path(__file__).parents[2] / "dashboard"
TABLE_STYLES = (DASHBOARD / "table" / "table.css").read_text()
STYLES = "\n".join(path.read_text() for path in DASHBOARD.rglob("*.css"))
MIXED = re.compile(
    r"color-mix\(in srgb, var\(--(?:st-primary-color|clickable)\) (\d+)%, var\(--(?:st-background-color|page)\)"
)
AS_TEXT, AS_MARK = 4.5, 3.0
FADED = 0.6
"""The opacity of Streamlit's captions, axes and legends."""


def luminance(colour: str) -> float:
    """WCAG 2.2's relative luminance of #rrggbb."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio of two colours."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def mixed(colour: str, ground: str, *, opacity: float) -> str:
    """A colour that lets through what is behind it."""
    pairs = ((int(colour[at : at + 2], 16), int(ground[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{round(over * opacity + under * (1 - opacity)):02x}" for over, under in pairs)


def test_the_measure_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert mixed("#000000", "#ffffff", opacity=0.6) == "#666666"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("group", GROUPS)
def test_what_has_a_meaning_can_be_seen_and_read(group: str, dark: bool) -> None:
    least = AS_MARK if group == "phase" else AS_TEXT
    for name, meaning in GROUPS[group].items():
        assert meaning.means
        shown = contrast(meaning.colour.on(dark=dark), BACKGROUND.on(dark=dark))
        assert shown >= least, f"{group} {name}: {shown:.2f}"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_captions_axes_and_links_can_be_read_on_both_grounds(dark: bool) -> None:
    primary = palette.PRIMARY.on(dark=dark)
    for ground in (BACKGROUND.on(dark=dark), SECONDARY.on(dark=dark)):
        faded = mixed(TEXT.on(dark=dark), ground, opacity=FADED)
        assert contrast(faded, ground) >= AS_TEXT
        assert contrast(palette.BLUE.on(dark=dark), ground) >= AS_TEXT
        assert contrast(primary, ground) >= AS_MARK
    for tier in palette.TIERS:
        assert contrast(tier.on(dark=dark), BACKGROUND.on(dark=dark)) >= AS_MARK


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_words_of_charts_tables_and_pressed_buttons_can_be_read(dark: bool) -> None:
    """Streamlit's words of axes had 3.72."""
    ground, primary = BACKGROUND.on(dark=dark), palette.PRIMARY.on(dark=dark)
    drawn = charts.readable({"config": {"axis": {"grid": False}}}, dark=dark)["config"]
    assert drawn["axis"]["grid"] is False
    for part in ("axis", "legend", "header"):
        for name in ("labelColor", "titleColor"):
            assert contrast(drawn[part][name], ground) >= AS_TEXT, (part, name)
    assert contrast(GREY.on(dark=dark), SECONDARY.on(dark=dark)) >= AS_TEXT, "headings of columns"
    shares = [int(share) / 100 for share in MIXED.findall(STYLES)]
    assert len(shares) >= 3, "pressed buttons, and rows under the pointer"
    for share in shares:
        pressed = mixed(primary, ground, opacity=share)
        assert contrast(primary, pressed) >= AS_TEXT
        assert contrast(GREY.on(dark=dark), pressed) >= AS_TEXT
    in_tables = (
        palette.STATUS,
        palette.OUTCOME,
        palette.VERDICT,
        palette.SEVERITY,
        palette.DID,
        palette.KNOWN,
        palette.STATE,
    )
    row = mixed(primary, ground, opacity=int(MIXED.findall(TABLE_STYLES)[0]) / 100)
    for name, meaning in [each for group in in_tables for each in group.items()]:
        assert contrast(meaning.colour.on(dark=dark), row) >= AS_TEXT, f"the label {name} in a row under the pointer"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_white_words_of_a_filled_button_can_be_read(dark: bool) -> None:
    """On `PRIMARY` they had 3.51 in the dark theme."""
    filled = palette.FILLED.on(dark=dark)
    assert contrast(filled, "#ffffff") >= AS_TEXT
    assert contrast(filled, BACKGROUND.on(dark=dark)) >= AS_MARK
    assert 'stBaseButton-primaryFormSubmit"] { background: var(--filled)' in STYLES


def test_every_chart_is_drawn_with_words_that_can_be_read() -> None:
    drawn = re.compile(r"st\.(altair_chart|vega_lite_chart)\(")
    views = [path for path in (DASHBOARD / "views").glob("*.py") if drawn.search(path.read_text())]
    assert {path.name for path in views} == {"charts.py"}
    assert all("charts.readable(" in path.read_text() for path in views)


def test_a_group_has_all_that_the_tracer_names() -> None:
    assert list(palette.SEVERITY) == [*Severity]
    assert set(palette.VERDICT) == {*Verdict}
    assert set(palette.PHASE) == set(WORDS.values())
    assert set(palette.MARKER) == {*MarkerKind}


def test_red_is_for_what_is_lost_or_wrong_and_for_nothing_else() -> None:
    """`abandoned` was blue."""
    groups = {name: group for name, group in palette.GROUPS.items() if name != "phase"}
    red = {name: {word for word, each in group.items() if each.colour is palette.RED} for name, group in groups.items()}
    assert {name: words for name, words in red.items() if words} == {
        "level": {"lost"}, "state": {"died"}, "status": {"failed", "abandoned"}, "outcome": {"failed", "lost"},
        "verdict": {"drift"}, "severity": {"crash"},
        "did": {"engine died", "request lost", "request failed", "wrong KV read"}, "cause": {"failed-load"},
        "marker": {"death"},
    }  # fmt: skip


def test_a_word_has_one_badge() -> None:
    badges: dict[str, set[str]] = {}
    for group in (palette.STATUS, palette.OUTCOME, palette.VERDICT, palette.SEVERITY, palette.DID, palette.KNOWN):
        for name, meaning in group.items():
            badges.setdefault(name, set()).add(meaning.colour.badge)
    assert all(len(each) == 1 for each in badges.values()), badges
    assert {name: each.pop() for name, each in badges.items()} == palette.BADGES


def test_streamlit_and_css_have_the_same_colours() -> None:
    options = palette.streamlit_options()
    assert options["theme.dark.redTextColor"] == palette.RED.dark
    assert {option.split(".")[1] for option in options} == {"light", "dark"}
    assert f"--level-lost: light-dark({palette.RED.light}, {palette.RED.dark});" in palette.style()
    assert "--marker-contact-lost:" in palette.style()


def test_no_other_file_has_colours_of_its_own() -> None:
    own = re.compile(r"#[0-9a-fA-F]{6}\b")
    white = {"#ffffff"}  # what a page has before it knows its theme
    for path in sorted([*DASHBOARD.rglob("*.py"), *DASHBOARD.rglob("*.css"), *DASHBOARD.rglob("*.js")]):
        if path.name != "palette.py":
            assert {*own.findall(path.read_text())} <= white, path


def test_colours_are_written_in_one_way() -> None:
    every = [value for value in vars(palette).values() if isinstance(value, Colour)]
    every += [meaning.colour for group in GROUPS.values() for meaning in group.values()]
    assert all(re.fullmatch(r"#[0-9a-f]{6}", each) for colour in every for each in (colour.light, colour.dark))


def test_pages_show_the_words_of_the_field_and_filter_by_those_of_the_api() -> None:
    for group in (palette.STATE, palette.OUTCOME):
        labels = [palette.label(word) for word in group]
        assert len(set(labels)) == len(labels)
        assert not {"lost_contact", "unseen"} & {*labels}
    assert {*palette.LABELS} <= {*palette.STATE, *palette.OUTCOME}, "the API has no such word any more"
