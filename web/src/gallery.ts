/** The gallery: thumbnails of the picked or filtered samples. Only tiles in sight exist. */

import { classColour } from "./colours";
import { button, count, h, icon, perFrame, select, setOptions } from "./dom";
import { GalleryLayout, type Section } from "./galleryLayout";
import { NO_ROW, type Model } from "./model";
import { ascending, groupByLabels, groupStable, range } from "./sorting";
import type { Thumbnails } from "./thumbnails";

const GAP = 6;
/** Height of a line of a tile's text, and of a section's heading. */
const LINE = 15;
const HEADING = 28;
/** Names up to this length fit twice into a line: `3 → 0`. */
const SHORT_NAME = 4;
const SPARE_LINES = 2;

type Order = "suspicious" | "trusted" | "class" | "neighbourhood" | "data";

interface Tile {
  element: HTMLElement;
  canvas: HTMLCanvasElement;
  caption: HTMLElement;
  /** Index in `rows`; -1 while unused. */
  at: number;
  state: string;
}

export class Gallery {
  readonly element: HTMLElement;
  private rows: Int32Array = new Int32Array();
  private order: Order = "suspicious";
  private readonly scroller: HTMLElement;
  private readonly field = h("div", { className: "field", role: "presentation" });
  private readonly title = h("h2", { className: "gallery-title", "aria-live": "polite" });
  private readonly reason = h("input", {
    id: "reason",
    type: "text",
    maxlength: 200,
    placeholder: "Reason (optional)",
    "aria-label": "Reason for keeping or dropping",
  });
  /** Offers the class that the focused sample lies among. */
  readonly newLabel = h("input", {
    ...{ id: "relabel", type: "text", placeholder: "New label", "aria-label": "New label: name, number or first letters; Enter applies it" },
    onfocus: () => (this.newLabel.placeholder = this.model.otherClass(this.model.focus) ?? "New label"),
    onkeydown: (event: KeyboardEvent) => (event.key === "Enter" ? this.relabel() : undefined),
  });
  private readonly keep = button("act keep", () => this.decide(true), { id: "keep" });
  private readonly drop = button("act drop", () => this.decide(false), { id: "drop" });
  private readonly clear = button("quiet", () => this.model.pick(null), { id: "clear" }, "Clear");
  private readonly tiles: Tile[] = [];
  private readonly headings: HTMLElement[] = [];
  private sections: Section[] = [];
  private layout = new GalleryLayout([], { columns: 1, across: 70, down: 70, gap: GAP, heading: HEADING });
  /** Side of a thumbnail, and height of a tile's text and of a line of tiles. */
  private side = 64;
  private readonly captionHeight: number;
  private lineHeight = 70;
  private focused = -1;

  constructor(
    private readonly model: Model,
    private readonly thumbnails: Thumbnails,
  ) {
    const short = model.info.classes.every((name) => name.length <= SHORT_NAME);
    this.captionHeight = (short ? LINE : 2 * LINE) + 3;
    this.scroller = h(
      "div",
      {
        className: short ? "scroller short" : "scroller",
        role: "listbox",
        tabindex: "0",
        id: "gallery",
        "aria-label": "Samples. Arrow keys move, k keeps, d drops.",
        onscroll: perFrame(() => this.render()),
      },
      this.field,
    );
    const order = select("sort", "Order of the gallery", (value) => {
      this.order = value as Order;
      this.refresh();
    });
    const orders: [Order, string][] = [
      ["suspicious", "Most suspicious first"],
      ["trusted", "Least suspicious first"],
      ["class", "By class"],
      ["neighbourhood", "By label → neighbourhood"],
      ["data", "Order of the data set"],
    ];
    setOptions(order, orders.filter(([value]) => value !== "neighbourhood" || model.info.layout === "map"), this.order);
    this.element = h(
      "section",
      { className: "gallery", "aria-label": "Gallery" },
      h("div", { className: "row spread" }, this.title, this.clear, order),
      model.source.live ? h("div", { className: "row actions" }, this.reason, this.newLabel, this.keep, this.drop) : null,
      this.scroller,
    );
    model.on(["picked", "filter"], () => this.refresh());
    model.on(["decisions", "preview"], () => (model.show === "all" ? this.updateStates() : this.refresh()));
    model.on(["neighbourhood"], () => (this.order === "neighbourhood" ? this.refresh() : this.repaint()));
    model.on(["focus"], () => this.scrollToFocus());
    this.refresh();
    new ResizeObserver(perFrame(() => this.measure())).observe(this.scroller);
  }

  /** Keep or drop `rows`; by default the picked samples, else the focused one. */
  decide(keep: boolean, rows = this.targets(), label: number | null = null): void {
    this.model.decide(rows, keep, this.reason.value, label);
    this.reason.value = "";
  }

  /** Keep or drop the focused sample, else the picked ones. */
  decideFocused(keep: boolean, label: number | null = null): void {
    this.decide(keep, this.model.focus === NO_ROW ? this.targets() : [this.model.focus], label);
  }

  private relabel(): void {
    const label = this.model.findClass(this.newLabel.value || this.newLabel.placeholder);
    if (label < 0) return this.model.notify("This is not one class: type its name, its number or more of its first letters.", true);
    this.decideFocused(true, label);
    this.newLabel.value = "";
    this.newLabel.blur();
  }

  /** Move the focus by so many tiles to the right and lines down. */
  step(across: number, down: number): void {
    if (this.rows.length === 0) return;
    const to = this.focused < 0 ? 0 : this.layout.step(this.focused, across, down);
    this.model.setFocus(this.rows[to] ?? NO_ROW);
  }

  stepPage(direction: number): void {
    this.step(0, direction * Math.max(1, Math.floor(this.scroller.clientHeight / this.lineHeight)));
  }

  goTo(end: "first" | "last"): void {
    this.model.setFocus(this.rows[end === "last" ? this.rows.length - 1 : 0] ?? NO_ROW);
  }

  private targets(): number[] {
    if (this.model.picked !== null) return Array.from(this.rows);
    return this.model.focus === NO_ROW ? [] : [this.model.focus];
  }

  private refresh(): void {
    this.rows = this.filter(this.orderedRows());
    this.sections = [{ title: "", count: this.rows.length }];
    if (this.order === "neighbourhood") this.group();
    this.updateFocused();
    this.scroller.scrollTop = 0;
    this.measure();
  }

  /** Sections of the samples with the same label and neighbourhood. */
  private group(): void {
    const { neighbourhoodLabel, label, info } = this.model;
    if (neighbourhoodLabel === null) return;
    const { rows, groups } = groupByLabels(this.rows, label, neighbourhoodLabel);
    this.rows = rows;
    this.sections = groups.map((group) => {
      const [own, other] = [info.classes[group.label] ?? "?", info.classes[group.other] ?? "?"];
      const text = group.label === group.other ? `${own}, among its own` : `labelled ${own}, lies among ${other}`;
      return { title: `${count(group.count)} ${text}`, count: group.count };
    });
  }

  private orderedRows(): Int32Array {
    const { model } = this;
    switch (this.order) {
      case "suspicious":
      case "neighbourhood":
        return model.suspicious();
      case "trusted":
        return ascending(model.score);
      case "class":
        return groupStable(model.suspicious(), model.label, model.info.classes.length);
      case "data":
        return range(model.n);
    }
  }

  /** Those of `rows` that are picked, if any are, and not filtered out. */
  private filter(rows: Int32Array): Int32Array {
    const { picked, n } = this.model;
    let mask = this.model.visible();
    if (picked !== null) {
      const shown = new Uint8Array(n);
      for (const row of picked.rows) shown[row] = mask === null ? 1 : (mask[row] as number);
      mask = shown;
    }
    if (mask === null) return rows;
    const passing = new Int32Array(n);
    let end = 0;
    for (let i = 0; i < n; i++) {
      const row = rows[i] as number;
      if (mask[row] === 1) passing[end++] = row;
    }
    return passing.subarray(0, end);
  }

  private updateTitle(): void {
    const { picked, filtered, n, focus } = this.model;
    const text = picked !== null ? picked.title : filtered ? "filtered" : n === 0 ? "no samples" : "all samples";
    this.title.replaceChildren(...(n === 0 ? [] : [h("b", {}, count(this.rows.length)), " "]), text);
    this.clear.hidden = picked === null;
    const targets = picked !== null ? this.rows.length : focus === NO_ROW ? 0 : 1;
    for (const [element, word, sign] of [[this.keep, "Keep", "keep"], [this.drop, "Drop", "drop"]] as const) {
      element.disabled = targets === 0;
      element.replaceChildren(icon(sign), targets > 1 ? `${word} ${count(targets)}` : word);
      element.title = targets === 0 ? "Lasso samples on the map, or choose one" : `${word} (${sign[0]})`;
    }
  }

  private measure(): void {
    const width = this.scroller.clientWidth - GAP;
    const columns = Math.max(2, Math.floor(width / ((width > 520 ? 76 : 64) + GAP)));
    this.side = Math.floor(width / columns) - GAP;
    this.lineHeight = this.side + this.captionHeight + GAP;
    this.layout = new GalleryLayout(this.sections, { columns, across: this.side + GAP, down: this.lineHeight, gap: GAP, heading: HEADING });
    this.field.style.height = `${this.layout.height}px`;
    this.repaint();
  }

  private repaint(): void {
    for (const tile of this.tiles) tile.at = -1;
    this.render();
    this.updateTitle();
  }

  private render(): void {
    const spare = SPARE_LINES * this.lineHeight;
    const { scrollTop, clientHeight } = this.scroller;
    const { first, end, sections } = this.layout.visible(scrollTop - spare, scrollTop + clientHeight + spare);
    const missing = new Set<number>();
    for (let at = first; at < end; at++) missing.add(at);
    const free = this.tiles.filter((tile) => !missing.delete(tile.at));
    for (const at of missing) this.paint(free.pop() ?? this.createTile(), at);
    for (const tile of free) {
      tile.at = -1;
      tile.element.hidden = true;
    }
    const titled = sections.filter((section) => section.title !== "");
    while (this.headings.length < titled.length) {
      const heading = h("div", { className: "section", role: "presentation" });
      this.headings.push(heading);
      this.field.append(heading);
    }
    this.headings.forEach((heading, n) => {
      const section = titled[n];
      heading.hidden = section === undefined;
      if (section === undefined) return;
      heading.textContent = heading.title = section.title;
      heading.style.transform = `translate(${GAP}px, ${section.top}px)`;
    });
  }

  private createTile(): Tile {
    const canvas = h("canvas", { className: "thumb", "aria-hidden": "true" });
    const caption = h("span", { className: "label" });
    const element = h("div", { className: "cell", role: "option" }, canvas, caption);
    const tile = { element, canvas, caption, at: -1, state: "" };
    element.addEventListener("click", () => {
      this.model.setFocus(this.rows[tile.at] ?? NO_ROW);
      this.scroller.focus({ preventScroll: true });
    });
    this.tiles.push(tile);
    this.field.append(element);
    return tile;
  }

  private paint(tile: Tile, at: number): void {
    const { model } = this;
    const { element } = tile;
    const row = this.rows[at] ?? 0;
    const [left, top] = this.layout.position(at);
    tile.at = at;
    element.hidden = false;
    element.style.width = tile.canvas.style.height = `${this.side}px`;
    element.style.transform = `translate(${left}px, ${top}px)`;
    element.style.setProperty("--class", classColour(model.label[row] ?? 0, model.info.classes.length));
    this.updateState(tile, row);
    element.classList.toggle("focused", row === model.focus);
    element.id = `cell-${row}`;
    element.dataset["id"] = model.id(row);
    element.setAttribute("aria-selected", String(row === model.focus));
    element.setAttribute("aria-posinset", String(at + 1));
    element.setAttribute("aria-setsize", String(this.rows.length));
    this.thumbnails.paint(tile.canvas, row);
  }

  private updateState(tile: Tile, row: number): void {
    const { element } = tile;
    tile.state = this.model.stateOf(row);
    element.classList.toggle("dropped", !this.model.kept(row));
    element.classList.toggle("overridden", this.model.overridden[row] === 1);
    element.title = this.model.describe(row);
    element.setAttribute("aria-label", element.title);
    // Names may run from right to left, so each has an element of its own.
    const [own, other] = [h("bdi", {}, this.model.className(row)), this.model.otherClass(row)];
    tile.caption.replaceChildren(own, ...(other === null ? [] : [" ", h("span", { className: "among" }, "→ ", h("bdi", {}, other))]));
  }

  /** Update the tiles whose samples are now kept or dropped. */
  private updateStates(): void {
    for (const tile of this.tiles) {
      const row = this.rows[tile.at];
      if (row !== undefined && tile.state !== this.model.stateOf(row)) this.updateState(tile, row);
    }
    this.updateTitle();
  }

  private updateFocused(): void {
    const { focus } = this.model;
    this.focused = focus === NO_ROW ? -1 : this.rows.indexOf(focus);
  }

  private scrollToFocus(): void {
    this.updateFocused();
    if (this.focused >= 0) {
      const top = this.layout.position(this.focused)[1];
      const { scrollTop, clientHeight } = this.scroller;
      if (top < scrollTop || top + this.lineHeight > scrollTop + clientHeight) {
        this.scroller.scrollTop = Math.max(0, top - clientHeight / 2 + this.side / 2);
      }
      this.scroller.setAttribute("aria-activedescendant", `cell-${this.model.focus}`);
    } else this.scroller.removeAttribute("aria-activedescendant");
    this.repaint();
  }
}
