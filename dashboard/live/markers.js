// Markers over the lanes, as on the other charts over time: lines at deploys, deaths and resets, with their texts. They
// are elements, so that a pointer and a screen reader find each.

const NEAR_PX = 4; // closer markers are merged, with both texts

/** The markers within the range, overlapping ones merged: {x, kind, text}. */
export function placed(markers, place) {
  const shown = [];
  for (const { at_ms, kind, text } of markers) {
    const x = Math.round(place.x(at_ms - place.model.origin));
    if (x < 0 || x > place.width) continue;
    const before = shown.at(-1);
    if (before && x - before.x < NEAR_PX) before.text += `\n${text}`;
    else shown.push({ x, kind, text });
  }
  return shown;
}

export class Markers {
  constructor(box) {
    this.box = box;
  }

  show(markers, place) {
    const shown = placed(markers, place);
    while (this.box.children.length > shown.length) this.box.lastChild.remove();
    shown.forEach(({ x, kind, text }, number) => {
      const line = this.box.children[number] ?? this.box.appendChild(marker());
      line.style.left = `${x}px`;
      if (line.title === text) return;
      line.title = text;
      line.setAttribute("aria-label", text);
      line.style.setProperty("--colour", `var(--marker-${kind.replaceAll(" ", "-")}, var(--muted))`);
    });
  }
}

function marker() {
  const line = Object.assign(document.createElement("div"), { className: "marker" });
  line.setAttribute("role", "img");
  return line;
}
