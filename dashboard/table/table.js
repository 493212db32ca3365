// A table with links as rows. A click opens the link in the row under the pointer: that link is sent to the server at once,
// so the server needs no row numbers or state.

import { cutIds } from "../browser/ids.js";

const OPENS_WITHIN_MS = 8000; // after this time the browser follows the link itself, in a new session: the server may hang
const MIDDLE = 1;
const ID_MOST = 44; // characters

class Table {
  constructor(parent) {
    this.root = parent.appendChild(element("div", "kvtable"));
    this.frame = this.root.appendChild(element("div", "frame"));
    this.table = this.frame.appendChild(element("table"));
    this.head = this.table.createTHead().insertRow();
    this.body = this.table.createTBody();
    this.opening = null; // the link that was clicked and has not been followed yet
    this.status = this.root.appendChild(element("div", "opening"));
    this.status.setAttribute("role", "status");
    this.sorted = { column: -1, by: 1 };
    this.listen();
  }

  listen() {
    // The pressed row stays under the pointer until it is released.
    this.frame.addEventListener("pointerdown", (event) => { this.pressed = rowOf(event) ?? this.body; });
    this.release = () => {
      if (!this.pressed) return;
      setTimeout(() => { // after the click
        this.pressed = null;
        if (this.late) this.show(this.late);
      }, 0);
    };
    for (const name of ["pointerup", "pointercancel", "dragend"]) window.addEventListener(name, this.release);
    this.body.addEventListener("click", (event) => {
      const row = rowOf(event);
      if (!row?.dataset.link) return;
      const isOnLink = event.target.closest("a") !== null;
      if (event.ctrlKey || event.metaKey || event.shiftKey) {
        if (!isOnLink) window.open(row.dataset.link, "_blank");
        return;
      }
      event.preventDefault();
      this.open(row);
    });
    this.body.addEventListener("auxclick", (event) => {
      const link = rowOf(event)?.dataset.link;
      if (event.button === MIDDLE && link && event.target.closest("a") === null) window.open(link, "_blank");
    });
    this.body.addEventListener("keydown", (event) => {
      const to = { ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" }[event.key];
      const link = to && rowOf(event)?.[to]?.querySelector("a");
      if (!link) return;
      event.preventDefault();
      link.focus();
    });
    this.head.addEventListener("keydown", (event) => {
      const to = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
      const button = to && event.target.closest("th")?.[to]?.querySelector("button");
      if (!button) return;
      event.preventDefault();
      event.target.tabIndex = -1;
      button.tabIndex = 0;
      button.focus();
    });
    this.body.addEventListener("pointerover", (event) => {
      const cell = event.target.closest("td");
      if (cell) cell.title = cell.scrollWidth > cell.clientWidth || cell.innerText !== cell.whole ? cell.whole : "";
    });
  }

  take({ data, setTriggerValue }) {
    this.setTriggerValue = setTriggerValue;
    if (this.pressed) this.late = data;
    else this.show(data);
  }

  show(data) {
    this.late = null;
    const isAnother = this.data?.number !== data.number;
    if (JSON.stringify(this.data?.columns) !== JSON.stringify(data.columns)) {
      this.data = data;
      this.showHead();
    }
    this.data = data;
    this.table.setAttribute("aria-label", data.name);
    if (isAnother) {
      this.frame.scrollTop = 0;
      if (this.opening !== null && isOfThisPage(this.opening)) this.done();
    }
    this.showRows();
  }

  showHead() {
    this.sorted = { column: -1, by: 1 };
    this.body.replaceChildren();
    this.head.replaceChildren(...this.data.columns.map((column, number) => {
      const cell = element("th", classOf(column));
      cell.scope = "col";
      const button = cell.appendChild(element("button"));
      button.textContent = column.label;
      button.title = column.help ?? "";
      button.tabIndex = number === 0 ? 0 : -1; // one tab stop for all rows: arrow keys move between them
      button.onclick = () => this.sort(number);
      return cell;
    }));
  }

  /** Sort by a column: ascending, descending, then unsorted. */
  sort(column) {
    const { by } = this.sorted;
    if (this.sorted.column !== column) this.sorted = { column, by: 1 };
    else this.sorted = by === 1 ? { column, by: -1 } : { column: -1, by: 1 };
    this.showRows();
  }

  showRows() {
    const { rows, ranks, links, columns } = this.data;
    const { column, by } = this.sorted;
    [...this.head.cells].forEach((cell, number) => {
      if (number === column) cell.setAttribute("aria-sort", by === 1 ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
    });
    const texts = columns.map(({ kind }, number) => kind === "ids" && cutIds(rows.map((row) => row[number]), ID_MOST));
    const order = rows.map((_, row) => row);
    if (column >= 0) order.sort((a, b) => by * (ranks[column][a] - ranks[column][b]) || a - b);
    while (this.body.rows.length > rows.length) this.body.deleteRow(-1);
    order.forEach((row, place) => {
      const shown = this.body.rows[place] ?? this.body.insertRow();
      if (links.length) shown.dataset.link = links[row];
      shown.classList.toggle("opened", links[row] !== undefined && links[row] === this.opening);
      columns.forEach((each, number) => {
        const cell = shown.cells[number] ?? shown.insertCell();
        const link = number === 0 ? links[row] : undefined;
        const now = JSON.stringify([texts[number] ? texts[number][row] : rows[row][number], link]);
        if (cell.shown === now) return;
        cell.shown = now;
        cell.className = classOf(each);
        if (each.width) cell.style.maxWidth = `${each.width}px`;
        cell.whole = String(rows[row][number]);
        fill(cell, each, texts[number] ? texts[number][row] : rows[row][number], link);
      });
    });
  }

  /** Let the server follow a row's link, and show that. */
  open(row) {
    const link = row.dataset.link;
    this.setTriggerValue("open", link);
    const url = new URL(link, location.href).href;
    if (url === location.href) return;
    this.done();
    this.opening = link;
    row.classList.add("opened");
    this.status.textContent = `Opening ${row.cells[0].innerText} …`;
    this.waiting = setTimeout(() => location.assign(url), OPENS_WITHIN_MS);
  }

  done() {
    clearTimeout(this.waiting);
    this.opening = null;
    this.status.textContent = "";
    for (const row of this.body.querySelectorAll(".opened")) row.classList.remove("opened");
  }

  stop() {
    this.done();
    for (const name of ["pointerup", "pointercancel", "dragend"]) window.removeEventListener(name, this.release);
    this.root.remove();
  }
}

function isOfThisPage(link) {
  return new URL(link, location.href).pathname === location.pathname;
}

function element(name, className = "") {
  return Object.assign(document.createElement(name), { className });
}

function classOf({ kind, right }) {
  return right ? `${kind} right` : kind;
}

function rowOf(event) {
  return event.target.closest("tbody tr");
}

function fill(cell, column, value, link) {
  cell.replaceChildren();
  const place = link === undefined ? cell : cell.appendChild(Object.assign(element("a"), { href: link }));
  if (column.kind === "labels") {
    for (const word of value) {
      const [text, colour] = column.labels[word] ?? [word, "inherit"];
      const label = place.appendChild(element("span", "label"));
      label.textContent = text;
      label.style.color = colour;
    }
  } else place.textContent = value;
}

const tables = new WeakMap();

/** Streamlit calls this first, and again with new data. */
export default function (component) {
  const parent = component.parentElement;
  if (!tables.has(parent)) tables.set(parent, new Table(parent));
  tables.get(parent).take(component);
  return () => {
    tables.get(parent)?.stop();
    tables.delete(parent);
  };
}
