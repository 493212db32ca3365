"""What the dashboards are made of: panels, variables, links. Thin words over grafana-foundation-sdk."""

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
"""Selects the engines that the reader has chosen."""
CONNECTOR = 'engine=~"$engine",connector=~"$connector"'
TAG = "kvtrail"


@dataclass(frozen=True, kw_only=True)
class Link:
    """A way to kvtrail's own dashboard, whose address is the variable `kvtrail`; raw, or Grafana would encode its slashes."""

    title: str
    path: str

    def build(self) -> dashboards.DashboardLink:
        """As a panel's data link."""
        return dashboards.DashboardLink(self.title).url("${kvtrail:raw}" + self.path).target_blank(True)


REQUESTS = Link(title="Requests with drift in kvtrail", path="/requests?verdict=drift")
RULE = Link(title="Findings of this rule in kvtrail", path="/findings?rule=${__field.labels.rule}")
RULE_OF_ROW = Link(title=RULE.title, path="/findings?rule=${__value.raw}")
ALL_REQUESTS = Link(title="Requests in kvtrail", path="/requests")


def target(expr: str, legend: str = "", *, exemplars: bool = False, instant: bool = False) -> prometheus.Dataquery:
    """A query; exemplars carry the trace id of a request to the panel."""
    query = prometheus.Dataquery().expr(expr).datasource(SOURCE)
    query = query.legend_format(legend or "__auto").exemplar(exemplars)
    return query.instant().format(PromQueryFormat.TABLE) if instant else query.range()


def lines(
    title: str,
    says: str,
    *targets: prometheus.Dataquery,
    unit: str = "short",
    width: int = 12,
    stacked: bool = False,
    links: tuple[Link, ...] = (),
    most: float | None = None,
) -> timeseries.Panel:
    """A panel over time."""
    panel = (
        timeseries.Panel().title(title).description(says).datasource(SOURCE).unit(unit).height(8).span(width)
        .legend(common_builders.VizLegendOptions().show_legend(True).display_mode(common.LegendDisplayMode.LIST)
                .placement(common.LegendPlacement.BOTTOM))
        .tooltip(common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI)
                 .sort(common.SortOrder.DESCENDING))
        .line_width(1).fill_opacity(20 if stacked else 8).show_points(common.VisibilityMode.AUTO).min(0)
        .data_links([link.build() for link in links])
    )  # fmt: skip
    if stacked:
        panel = panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    if most is not None:
        panel = panel.max(most)
    for number, query in enumerate(targets):
        panel = panel.with_target(query.ref_id(chr(ord("A") + number)))
    return panel


def number(
    title: str,
    says: str,
    query: prometheus.Dataquery,
    *,
    unit: str = "short",
    alarm: float | None = None,
    links: tuple[Link, ...] = (),
    width: int = 6,
) -> stat.Panel:
    """One number; red from `alarm` on."""
    steps = [dashboard.Threshold(value=None, color="green" if alarm is not None else "text")]
    if alarm is not None:
        steps.append(dashboard.Threshold(value=alarm, color="red"))
    return (
        stat.Panel().title(title).description(says).datasource(SOURCE).unit(unit).height(4).span(width)
        .graph_mode(common.BigValueGraphMode.AREA)
        .reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(dashboards.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(steps))
        .data_links([link.build() for link in links])
        .with_target(query.ref_id("A"))
    )  # fmt: skip


def rows(title: str, says: str, query: prometheus.Dataquery, *, links: dict[str, Link] | None = None) -> table.Panel:
    """A table of the latest values. `links` are by column."""
    hidden: dict[str, Any] = {"excludeByName": {"Time": True}}
    panel = table.Panel().title(title).description(says).datasource(SOURCE).height(8).span(24)
    panel = panel.with_target(query.ref_id("A"))
    panel = panel.with_transformation(dashboard.DataTransformerConfig(id_val="organize", options=hidden))
    for column, link in (links or {}).items():
        url = "${kvtrail:raw}" + link.path
        told = [{"title": link.title, "url": url, "targetBlank": True}]
        panel = panel.override_by_name(column, [dashboard.DynamicConfigValue(id_val="links", value=told)])
    return panel


def begun(title: str, uid: str, says: str) -> dashboards.Dashboard:
    """A dashboard with what all of them have: the variables, and the way to the others."""
    engines = "label_values(kvtrail_engine_info, engine)"
    connectors = 'label_values(kvtrail_lookups_total{engine=~"$engine"}, connector)'
    return (
        dashboards.Dashboard(title).uid(uid).description(says).tags([TAG]).readonly().refresh("30s").time("now-1h", "now")
        .timezone("browser").tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboards.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_choice("engine", "Engine", engines))
        .with_variable(_choice("connector", "Connector", connectors))
        .with_variable(dashboards.TextBoxVariable("kvtrail").label("kvtrail's dashboard")
                       .default_value("http://localhost:8501"))
        .link(dashboards.DashboardLink("kvtrail").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG])
              .include_vars(True).keep_time(True))
        .link(ALL_REQUESTS.build().type(dashboard.DashboardLinkType.LINK).icon("external link"))
    )  # fmt: skip


def _choice(name: str, label: str, query: str) -> dashboards.QueryVariable:
    return (
        dashboards.QueryVariable(name).label(label).query(query).datasource(SOURCE).multi(True).include_all(True)
        .all_value(".*").refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .current(dashboard.VariableOption(selected=True, text="All", value="$__all"))
    )  # fmt: skip
