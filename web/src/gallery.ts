/** The gallery: what is picked or passes the filter, as thumbnails; only those in sight exist. */

import { classColour } from "./colours";
import { count, h, icon, perFrame } from "./dom";
import { GalleryLayout, type Section } from "./galleryLayout";
import { NO_ROW, type Model } from "./model";
import { ascending, everyone, grouped, groupedByPlace } from "./order";
import type { Thumbs } from "./thumbs";

const GAP = 6;
/** Pixels of a line of a tile's text, and of a section's heading. */
const LINE = 15;
const HEADING = 28;
/** Names up to this long fit twice into a line: `3 → 0`. */
const SHORT_NAME = 4;
const SPARE_LINES = 2;

type Sort = "suspicious" | "trusted" | "class" | "place" | "order";

interface Cell {
  element: HTMLElement;
  canvas: HTMLCanvasElement;
  caption: HTMLElement;
  at: number;
  /** How its sample stands: kept or dropped, by the filter or by hand. */
  state: string;
}

export class Gallery {
  readonly element: HTMLElement;
  /** Keep or drop rows; the caller knows the reason typed. */
  onDecide: (rows: number[], keep: boolean, reason: string) => void = () => undefined;
  rows: Int32Array = new Int32Array();
  private sort: Sort = "suspicious";
  private readonly scroller: HTMLElement;
  private readonly field: HTMLElement;
  private readonly heading: HTMLElement;
  private readonly reason: HTMLInputElement;
  private readonly buttons: { keep: HTMLButtonElement; drop: HTMLButtonElement; clear: HTMLButtonElement };
  private readonly cells: Cell[] = [];
  private readonly headings: HTMLElement[] = [];
  private sections: Section[] = [];
  private layout = new GalleryLayout([], { columns: 1, across: 70, down: 70, gap: GAP, heading: HEADING });
  private side = 64;
  /** Pixels of a tile's text. */
  private readonly caption: number;
  private focused = -1;

  constructor(
    private readonly model: Model,
    private readonly thumbs: Thumbs,
  ) {
    const short = model.info.classes.every((name) => name.length <= SHORT_NAME);
    this.caption = (short ? LINE : 2 * LINE) + 3;
    this.heading = h("h2", { className: "gallery-title", "aria-live": "polite" });
    this.field = h("div", { className: "field", role: "presentation" });
    this.scroller = h(
      "div",
      {
        className: short ? "scroller short" : "scroller",
        role: "listbox",
        tabindex: "0",
        id: "gallery",
        "aria-label": "Gallery of samples; arrows move, k keeps, d drops",
        onscroll: perFrame(() => this.render()),
      },
      this.field,
    );
    const sort = h(
      "select",
      { "aria-label": "Order of the gallery", id: "sort" },
      h("option", { value: "suspicious" }, "Most suspicious first"),
      h("option", { value: "trusted" }, "Least suspicious first"),
      h("option", { value: "class" }, "By class"),
      model.info.layout === "map" ? h("option", { value: "place" }, "By label → surroundings") : null,
      h("option", { value: "order" }, "As in the data"),
    );
    sort.addEventListener("change", () => {
      this.sort = sort.value as Sort;
      this.refresh();
    });
    this.reason = h("input", {
      id: "reason",
      type: "text",
      maxlength: 200,
      placeholder: "Reason (optional)",
      "aria-label": "Reason for keeping or dropping",
    });
    this.buttons = {
      keep: h("button", { type: "button", className: "act keep", id: "keep", onclick: () => this.decide(true) }),
      drop: h("button", { type: "button", className: "act drop", id: "drop", onclick: () => this.decide(false) }),
      clear: h("button", { type: "button", className: "quiet", id: "clear", onclick: () => model.pick(null) }, "Clear"),
    };
    const live = model.source.live;
    this.element = h(
      "section",
      { className: "gallery", "aria-label": "Gallery" },
      h("div", { className: "row spread" }, this.heading, this.buttons.clear, sort),
      live ? h("div", { className: "row actions" }, this.reason, this.buttons.keep, this.buttons.drop) : null,
      this.scroller,
    );
    model.on(["picked", "filter"], () => this.refresh());
    model.on(["decisions", "preview"], () => (model.show === "all" ? this.restate() : this.refresh()));
    model.on(["places"], () => (this.sort === "place" ? this.refresh() : this.renew()));
    model.on(["focus"], () => this.reveal());
    this.refresh();
    new ResizeObserver(perFrame(() => this.measure())).observe(this.scroller);
  }

  /** The rows that a decision would concern: the picked ones, else the one in focus. */
  targets(): number[] {
    if (this.model.picked !== null) return Array.from(this.rows);
    return this.model.focus === NO_ROW ? [] : [this.model.focus];
  }

  decide(keep: boolean, rows = this.targets()): void {
    if (rows.length === 0) return;
    this.onDecide(rows, keep, this.reason.value);
    this.reason.value = "";
  }

  /** Move the focus by so many cells across and down. */
  step(across: number, down: number): void {
    if (this.rows.length === 0) return;
    const to = this.focused < 0 ? 0 : this.layout.step(this.focused, across, down);
    this.model.setFocus(this.rows[to] ?? NO_ROW);
  }

  end(last: boolean): void {
    this.model.setFocus(this.rows[last ? this.rows.length - 1 : 0] ?? NO_ROW);
  }

  get page(): number {
    return Math.max(1, Math.floor(this.scroller.clientHeight / (this.side + this.caption + GAP)));
  }

  private refresh(): void {
    const { model } = this;
    this.rows = this.inOrder().filter(this.wanted());
    this.sections = [{ title: "", count: this.rows.length }];
    if (this.sort === "place" && model.place !== null) this.group(model.place);
    this.focused = model.focus === NO_ROW ? -1 : this.rows.indexOf(model.focus);
    this.scroller.scrollTop = 0;
    this.measure();
    this.title();
  }

  /** Put those with the same label and the same surroundings together, with a heading each. */
  private group(place: Int16Array): void {
    const { classes } = this.model.info;
    const { rows, groups } = groupedByPlace(this.rows, this.model.label, place);
    this.rows = rows;
    this.sections = groups.map((group) => {
      const [label, among] = [classes[group.label] ?? "?", classes[group.place] ?? "?"];
      const what = group.label === group.place ? `${label}, among its own` : `labelled ${label}, lies among ${among}`;
      return { title: `${count(group.count)} ${what}`, count: group.count };
    });
  }

  /** All samples as the person wants them ordered; made in time that grows with their count only. */
  private inOrder(): Int32Array {
    const { model } = this;
    switch (this.sort) {
      case "suspicious":
      case "place":
        return model.suspicious();
      case "trusted":
        return ascending(model.score);
      case "class":
        return grouped(model.suspicious(), model.label, model.info.classes.length);
      case "order":
        return everyone(model.n);
    }
  }

  /** Whether a row belongs in the gallery: picked, if any are, and not filtered out. */
  private wanted(): (row: number) => boolean {
    const { model } = this;
    const visible = model.visible();
    if (model.picked === null) return visible === null ? () => true : (row) => visible[row] === 1;
    const picked = new Uint8Array(model.n);
    for (const row of model.picked.rows) if (visible === null || visible[row] === 1) picked[row] = 1;
    return (row) => picked[row] === 1;
  }

  private title(): void {
    const { picked, filtered, n } = this.model;
    const what = picked !== null ? picked.why : filtered ? "filtered" : n === 0 ? "nothing to show" : "all samples";
    this.heading.replaceChildren(...(n === 0 ? [] : [h("b", {}, count(this.rows.length)), " "]), what);
    this.buttons.clear.hidden = picked === null;
    const targets = picked !== null ? this.rows.length : this.model.focus === NO_ROW ? 0 : 1;
    for (const [button, word, sign] of [
      [this.buttons.keep, "Keep", "keep"],
      [this.buttons.drop, "Drop", "drop"],
    ] as const) {
      button.disabled = targets === 0;
      button.replaceChildren(icon(sign), targets > 1 ? `${word} ${count(targets)}` : word);
      button.title = targets === 0 ? "Lasso samples on the map, or choose one" : `${word} (${sign[0]})`;
    }
  }

  private measure(): void {
    const width = this.scroller.clientWidth - GAP;
    const aim = width > 520 ? 76 : 64;
    const columns = Math.max(2, Math.floor(width / (aim + GAP)));
    this.side = Math.floor(width / columns) - GAP;
    const [across, down] = [this.side + GAP, this.side + this.caption + GAP];
    this.layout = new GalleryLayout(this.sections, { columns, across, down, gap: GAP, heading: HEADING });
    this.field.style.height = `${this.layout.height}px`;
    this.renew();
  }

  /** Paint all cells in sight anew. */
  private renew(): void {
    for (const cell of this.cells) cell.at = -1;
    this.render();
    this.title();
  }

  private render(): void {
    const spare = SPARE_LINES * (this.side + this.caption + GAP);
    const { scrollTop, clientHeight } = this.scroller;
    const { first, end, sections } = this.layout.inSight(scrollTop - spare, scrollTop + clientHeight + spare);
    const missing = new Set<number>();
    for (let at = first; at < end; at++) missing.add(at);
    const free = this.cells.filter((cell) => !missing.delete(cell.at));
    for (const at of missing) this.place(free.pop() ?? this.make(), at);
    for (const cell of free) {
      cell.at = -1;
      cell.element.hidden = true;
    }
    const titled = sections.filter((section) => section.title !== "");
    while (this.headings.length < titled.length) {
      const heading = h("h3", { className: "section" });
      this.headings.push(heading);
      this.field.append(heading);
    }
    this.headings.forEach((heading, n) => {
      const section = titled[n];
      heading.hidden = section === undefined;
      if (section === undefined) return;
      heading.textContent = section.title;
      heading.title = section.title;
      heading.style.transform = `translate(${GAP}px, ${section.top}px)`;
    });
  }

  private make(): Cell {
    const canvas = h("canvas", { className: "thumb", "aria-hidden": "true" });
    const caption = h("span", { className: "label" });
    const element = h("div", { className: "cell", role: "option" }, canvas, caption);
    const cell = { element, canvas, caption, at: -1, state: "" };
    element.addEventListener("click", () => {
      this.model.setFocus(this.rows[cell.at] ?? NO_ROW);
      this.scroller.focus({ preventScroll: true });
    });
    this.cells.push(cell);
    this.field.append(element);
    return cell;
  }

  private place(cell: Cell, at: number): void {
    const { element } = cell;
    const row = this.rows[at] ?? 0;
    const [left, top] = this.layout.position(at);
    cell.at = at;
    element.hidden = false;
    element.style.width = cell.canvas.style.height = `${this.side}px`;
    element.style.transform = `translate(${left}px, ${top}px)`;
    element.style.setProperty("--class", classColour(this.model.label[row] ?? 0, this.model.info.classes.length));
    this.mark(cell, row);
    this.name(cell, row);
    element.classList.toggle("focused", row === this.model.focus);
    element.id = `cell-${row}`;
    element.dataset["id"] = this.model.id(row);
    element.setAttribute("aria-selected", String(row === this.model.focus));
    element.setAttribute("aria-posinset", String(at + 1));
    element.setAttribute("aria-setsize", String(this.rows.length));
    this.thumbs.paint(cell.canvas, row);
  }

  /** The label and, where the sample lies among another class, that class: `cat → dog`. */
  private name(cell: Cell, row: number): void {
    const among = this.model.among(row);
    // Each in an element of its own: names may run from right to left.
    const own = h("bdi", {}, this.model.className(row));
    cell.caption.replaceChildren(own, ...(among === null ? [] : [" ", h("span", { className: "among" }, "→ ", h("bdi", {}, among))]));
  }

  private mark(cell: Cell, row: number): void {
    const { element } = cell;
    const told = this.model.describe(row);
    cell.state = this.stateOf(row);
    element.classList.toggle("dropped", !this.model.kept(row));
    element.classList.toggle("overruled", this.model.overruled[row] === 1);
    element.setAttribute("aria-label", told);
    element.title = told;
  }

  private stateOf(row: number): string {
    return `${this.model.shown[row]}${this.model.overruled[row]}`;
  }

  /** The same samples, some of them now kept or dropped: only their cells change. */
  private restate(): void {
    for (const cell of this.cells) {
      const row = this.rows[cell.at];
      if (row !== undefined && cell.state !== this.stateOf(row)) this.mark(cell, row);
    }
    this.title();
  }

  private reveal(): void {
    const { focus } = this.model;
    this.focused = focus === NO_ROW ? -1 : this.rows.indexOf(focus);
    if (this.focused >= 0) {
      const top = this.layout.position(this.focused)[1];
      const { scrollTop, clientHeight } = this.scroller;
      if (top < scrollTop || top + this.side + this.caption + GAP > scrollTop + clientHeight) {
        this.scroller.scrollTop = Math.max(0, top - clientHeight / 2 + this.side / 2);
      }
      this.scroller.setAttribute("aria-activedescendant", `cell-${focus}`);
    } else this.scroller.removeAttribute("aria-activedescendant");
    this.renew();
  }
}
