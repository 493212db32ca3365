"""Panels, variables and links of the dashboards: a thin layer over grafana-foundation-sdk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as dashboards
from grafana_foundation_sdk.builders import prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = common.DataSourceRef(type_val="prometheus", uid="$datasource")
OURS = 'engine=~"$engine"'
"""Selects the engines chosen on the dashboard."""
CONNECTOR = 'engine=~"$engine",connector=~"$connector"'
NAMES = "engine:kvtrail_engine_info:name"
"""A series for each engine, with the label `engine_name`."""
TAG = "kvtrail"


@dataclass(frozen=True, kw_only=True)
class Link:
    """A link to kvtrail's own dashboard, at the address in the variable `kvtrail`. Without `raw`, Grafana would encode its
    slashes."""

    title: str
    path: str

    def build(self) -> dashboards.DashboardLink:
        """As a panel's data link."""
        return dashboards.DashboardLink(self.title).url("${kvtrail:raw}" + self.path).target_blank(True)


REQUESTS = Link(title="Requests with drift in kvtrail", path="/requests?verdict=drift")
RULE = Link(title="Findings of this rule in kvtrail", path="/findings?rule=${__field.labels.rule}")
RULE_OF_ROW = Link(title=RULE.title, path="/findings?rule=${__value.raw}")
ALL_REQUESTS = Link(title="Requests in kvtrail", path="/requests")


def named(expr: str) -> str:
    """An expression by `engine`, with the label `engine_name`."""
    return f"({expr}) * on (engine) group_left (engine_name) {NAMES}"


def query(expr: str, legend: str = "", *, exemplars: bool = False, instant: bool = False) -> prometheus.Dataquery:
    """A query. A legend by engine may use `{{engine_name}}`. With exemplars, the panel links its dots to requests by trace
    id."""
    if "{{engine_name}}" in legend:
        expr = named(expr)
    built = prometheus.Dataquery().expr(expr).datasource(SOURCE).legend_format(legend or "__auto").exemplar(exemplars)
    return built.instant().format(PromQueryFormat.TABLE) if instant else built.range()


def graph(
    title: str,
    description: str,
    *queries: prometheus.Dataquery,
    unit: str = "short",
    width: int = 12,
    stacked: bool = False,
    links: tuple[Link, ...] = (),
    maximum: float | None = None,
) -> timeseries.Panel:
    """A graph over time."""
    panel = (
        timeseries.Panel().title(title).description(description).datasource(SOURCE).unit(unit).height(8).span(width)
        .legend(common_builders.VizLegendOptions().show_legend(True).display_mode(common.LegendDisplayMode.LIST)
                .placement(common.LegendPlacement.BOTTOM))
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
                 .sort(common.SortOrder.DESCENDING))
        .line_width(1).fill_opacity(20 if stacked else 8).show_points(common.VisibilityMode.AUTO).min(0)
        .data_links([link.build() for link in links])
    )  # fmt: skip
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if maximum is not None:
        panel = panel.max(maximum)
    for number, each in enumerate(queries):
        panel = panel.with_target(each.ref_id(chr(ord("A") + number)))
    return panel


def stat_panel(
    title: str,
    description: str,
    query: prometheus.Dataquery,
    *,
    unit: str = "short",
    alarm: float | None = None,
    links: tuple[Link, ...] = (),
    width: int = 6,
) -> stat.Panel:
    """A single number, red from `alarm` on."""
    steps = [dashboard.Threshold(value=None, color="green" if alarm is not None else "text")]
    if alarm is not None:
        steps.append(dashboard.Threshold(value=alarm, color="red"))
    return (
        stat.Panel().title(title).description(description).datasource(SOURCE).unit(unit).height(4).span(width)
        .graph_mode(common.BigValueGraphMode.AREA)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(dashboards.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps))
        .data_links([link.build() for link in links])
        .with_target(query.ref_id("A"))
    )  # fmt: skip


def table_panel(
    title: str, description: str, query: prometheus.Dataquery, *, links: dict[str, Link] | None = None
) -> table.Panel:
    """A table of the latest values, with links by column."""
    hidden: dict[str, Any] = {"excludeByName": {"Time": True}}
    panel = table.Panel().title(title).description(description).datasource(SOURCE).height(8).span(24)
    panel = panel.with_target(query.ref_id("A"))
    panel = panel.with_transformation(dashboard.DataTransformerConfig(id_val="organize", options=hidden))
    for column, link in (links or {}).items():
        url = "${kvtrail:raw}" + link.path
        data_links = [{"title": link.title, "url": url, "targetBlank": True}]
        panel = panel.override_by_name(column, [dashboard.DynamicConfigValue(id_val="links", value=data_links)])
    return panel


def new_dashboard(title: str, uid: str, description: str) -> dashboards.Dashboard:
    """A dashboard with the variables that all dashboards share, and links to the others."""
    connectors = 'label_values(kvtrail_lookups_total{engine=~"$engine"}, connector)'
    return (
        dashboards.Dashboard(title).uid(uid).description(description).tags([TAG]).readonly().refresh("30s")
        .time("now-1h", "now").timezone("browser").tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboards.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_choice("engine", "Engine", f"query_result({NAMES})").regex(_NAMED))
        .with_variable(_choice("connector", "Connector", connectors))
        .with_variable(dashboards.TextBoxVariable("kvtrail").label("kvtrail's dashboard")
                       .default_value("http://localhost:8501"))
        .annotation(_markers())
        .link(dashboards.DashboardLink("kvtrail").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG])
              .include_vars(True).keep_time(True))
        .link(ALL_REQUESTS.build().type(dashboard.DashboardLinkType.LINK).icon("external link"))
    )  # fmt: skip


def _markers() -> dashboards.AnnotationQuery:
    """Lines over all panels at the moments that the metric has as its values: Prometheus keeps each one for as long as it was
    the latest, so a range of time shows all of them. Grafana counts in milliseconds."""
    expr = named(f"max by (engine, kind) (kvtrail_marker_timestamp_seconds{{{OURS}}})")
    return (
        dashboards.AnnotationQuery().name("Engines").datasource(SOURCE).enable(True).icon_color("blue")
        .expr(f"1000 * ({expr})").step("30s").use_value_for_time(True)
        .title_format("{{kind}} of {{engine_name}}").tag_keys("kind")
    )  # fmt: skip


_NAMED = '/engine="(?<value>[^"]+)".*engine_name="(?<text>[^"]+)"/'
"""Extracts the variable's value and its display text from a series of `query_result`."""


def _choice(name: str, label: str, query: str) -> dashboards.QueryVariable:
    return (
        dashboards.QueryVariable(name).label(label).query(query).datasource(SOURCE).multi(True).include_all(True)
        .all_value(".*").refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
    )  # fmt: skip
