"""How well a person can read the texts of a page."""

from __future__ import annotations

from collections.abc import Sequence

from browser import playwright

AS_TEXT = 4.5
"""The least contrast of text, by WCAG 2 at level AA."""
LEAST = """selectors => {
  const pen = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = colour => { pen.clearRect(0, 0, 1, 1); pen.fillStyle = colour; pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].map((each, n) => n < 3 ? each : each / 255); };
  const over = (top, under) => top.slice(0, 3).map((each, n) => each * top[3] + under[n] * (1 - top[3]));
  const light = rgb => { const [r, g, b] = rgb.map(each => each / 255)
    .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const of = element => {
    const chain = []; let opacity = 1;
    for (let each = element; each; each = each.parentElement ?? each.getRootNode().host) {
      const style = getComputedStyle(each); chain.push(rgba(style.backgroundColor)); opacity *= Number(style.opacity); }
    const ground = chain.reverse().reduce((under, top) => over(top, under), [255, 255, 255]);
    const own = getComputedStyle(element);
    const colour = rgba(element instanceof SVGElement ? own.fill : own.color); colour[3] *= opacity;
    const [low, high] = [light(over(colour, ground)), light(ground)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05); };
  const shown = selector => [...document.querySelectorAll('[data-testid=stBidiComponentIsolated]')]
    .map(each => each.shadowRoot).concat(document).filter(Boolean)
    .flatMap(root => [...root.querySelectorAll(selector)])
    .filter(each => each.textContent.trim() && each.getClientRects().length
      && getComputedStyle(each).opacity !== '0');
  return Object.fromEntries(selectors.map(selector => [selector, shown(selector)])
    .filter(([, elements]) => elements.length)
    .map(([selector, elements]) => [selector, Math.min(...elements.map(of))]));
}"""
"""By selector, the least contrast of a text with its ground, also in components; without those that are not shown."""


def unreadable(page: playwright.Page, selectors: Sequence[str]) -> dict[str, float]:
    """The contrasts that are too low, by selector."""
    least: dict[str, float] = page.evaluate(LEAST, list(selectors))
    return {selector: contrast for selector, contrast in least.items() if contrast < AS_TEXT}
