// The replay's keys. A step is counted here, at once, and told as a number: a button's click would be told as a click, and of
// those that come while the page is being drawn anew Streamlit keeps one.

const HELD = new WeakMap();

class Keys {
  constructor() {
    this.presses = 0;
    this.listen = (event) => this.press(event);
  }

  /** What the page shows now. An answer to an earlier press is not where the reader is any more. */
  take({ data, setStateValue }) {
    Object.assign(this, { data, setStateValue });
    if (data.presses === this.presses || this.step === undefined) {
      this.step = data.step;
      this.presses = data.presses;
    }
  }

  press(event) {
    const target = event.composedPath()[0];
    if (target.matches?.("input, textarea, select, [contenteditable]")) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const to = this.wanted(event.key);
    if (to === undefined || to < 1 || to > this.data.steps) return;
    event.preventDefault();
    this.step = to;
    this.presses += 1;
    this.setStateValue("pressed", { step: to, presses: this.presses });
  }

  wanted(key) {
    const { found } = this.data;
    if (key === "n") return this.step + 1;
    if (key === "p") return this.step - 1;
    if (key === "f") return found.find((each) => each > this.step);
    if (key === "F") return found.findLast((each) => each < this.step);
    return undefined;
  }
}

/** Streamlit calls this at first, and again with each new data; what was pressed in between must not be forgotten. */
export default function (component) {
  const root = component.parentElement;
  if (!HELD.has(root)) HELD.set(root, new Keys());
  const keys = HELD.get(root);
  keys.take(component);
  document.addEventListener("keydown", keys.listen); // the same one is not added twice
  (root.host ?? root).dataset.listens = "yes"; // for whoever must not press too early
  return () => document.removeEventListener("keydown", keys.listen);
}
