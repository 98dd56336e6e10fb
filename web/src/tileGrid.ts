/** Tiles of samples in sections, as a list for the keyboard. Only tiles in sight exist. */

import { classColour } from "./colours";
import { h, perFrame, setAttributes } from "./dom";
import { GalleryLayout, type Section } from "./galleryLayout";
import { NO_ROW, type Model } from "./model";
import type { Thumbnails } from "./thumbnails";

const GAP = 6;
/** Height of a line of a tile's text, and of a section's heading. */
const LINE = 15;
const HEADING = 28;
/** Names up to this length fit twice into a line: `3 → 0`. */
const SHORT_NAME = 4;
const SPARE_LINES = 2;

interface Tile {
  element: HTMLElement;
  canvas: HTMLCanvasElement;
  caption: HTMLElement;
  /** Index in `rows`; -1 while unused. */
  at: number;
  state: string;
}

export class TileGrid {
  readonly element: HTMLElement;
  private rows: Int32Array = new Int32Array();
  private readonly headings = h("div", { role: "presentation" });
  private readonly field = h("div", { className: "field", role: "presentation" }, this.headings);
  private readonly tiles: Tile[] = [];
  private sections: Section[] = [];
  private layout = new GalleryLayout([], { columns: 1, across: 70, down: 70, gap: GAP, heading: HEADING });
  /** Side of a thumbnail, and height of a tile's text and of a line of tiles. */
  private side = 64;
  private readonly captionHeight: number;
  private lineHeight = 70;
  private focused = -1;
  /** Where the focused sample was before a decision took it out of the filtered ones; else -1. */
  private left = -1;

  /** `remark` gives what a tile shows after the label of its sample. */
  constructor(
    private readonly model: Model,
    private readonly thumbnails: Thumbnails,
    id: string,
    label: string,
    private readonly remark: (row: number) => Node | null,
  ) {
    const short = model.info.classes.every((name) => name.length <= SHORT_NAME);
    this.captionHeight = (short ? LINE : 2 * LINE) + 3;
    const onscroll = perFrame(() => this.render());
    const attributes = { className: short ? "scroller short" : "scroller", role: "listbox", tabindex: "0", id, "aria-label": label, onscroll };
    this.element = h("div", attributes, this.field);
    model.on(["decisions", "preview"], () => this.updateStates());
    model.on(["neighbourhood"], () => this.repaint());
    model.on(["focus"], () => this.scrollToFocus());
    new ResizeObserver(perFrame(() => this.measure())).observe(this.element);
  }

  /** Show `rows`, which are split into `sections`; with `stay` from the same place on. */
  show(rows: Int32Array, sections: Section[], stay = false): void {
    const before = this.focused < 0 ? this.left : this.focused;
    this.rows = rows;
    this.sections = sections;
    this.updateFocused();
    if (stay && this.focused < 0 && this.model.focus !== NO_ROW) this.left = before;
    if (!stay) this.element.scrollTop = 0;
    this.measure();
  }

  /** Move the focus by so many tiles to the right and lines down; images outside of the selection have no focus. */
  step(across: number, down: number): void {
    // The tile after one that has left is now in its place.
    const after = Math.max(0, Math.min(this.rows.length - 1, across < 0 || down < 0 ? this.left - 1 : this.left));
    let to = this.focused < 0 ? after : this.layout.step(this.focused, across, down);
    while ((this.rows[to] ?? NO_ROW) >= this.model.n) to += across < 0 ? -1 : 1;
    const row = this.rows[to];
    if (row !== undefined) this.model.setFocus(row);
  }

  stepPage(direction: number): void {
    this.step(0, direction * Math.max(1, Math.floor(this.element.clientHeight / this.lineHeight)));
  }

  goTo(end: "first" | "last"): void {
    this.focused = end === "last" ? this.rows.length - 1 : 0;
    this.step(0, 0);
  }

  private measure(): void {
    const width = this.element.clientWidth - GAP;
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
  }

  private render(): void {
    const spare = SPARE_LINES * this.lineHeight;
    const { scrollTop, clientHeight } = this.element;
    const { first, end, sections } = this.layout.visible(scrollTop - spare, scrollTop + clientHeight + spare);
    const missing = new Set<number>();
    for (let at = first; at < end; at++) missing.add(at);
    const free = this.tiles.filter((tile) => !missing.delete(tile.at));
    for (const at of missing) this.paint(free.pop() ?? this.createTile(), at);
    for (const tile of free) tile.at = -1;
    // Tiles outside of the view are not on the page, also that of the focused sample.
    this.element.removeAttribute("aria-activedescendant");
    for (const { element, at } of this.tiles) {
      element.hidden = at < 0;
      const focused = element.classList.toggle("focused", this.rows[at] === this.model.focus);
      element.setAttribute("aria-selected", String(focused));
      if (focused) this.element.setAttribute("aria-activedescendant", element.id);
    }
    const titled = sections.filter((section) => section.title !== "");
    const headings = titled.map(({ title, top }) => {
      const heading = h("div", { className: "section", role: "presentation", title }, title);
      heading.style.transform = `translate(${GAP}px, ${top}px)`;
      return heading;
    });
    this.headings.replaceChildren(...headings);
  }

  private createTile(): Tile {
    const canvas = h("canvas", { className: "thumb", "aria-hidden": "true" });
    const caption = h("span", { className: "label" });
    const onclick = (): void => {
      const row = this.rows[tile.at] ?? NO_ROW;
      if (row < this.model.n) this.model.setFocus(row);
      this.element.focus({ preventScroll: true });
    };
    const tile = { element: h("div", { className: "cell", role: "option", onclick }, canvas, caption), canvas, caption, at: -1, state: "" };
    this.tiles.push(tile);
    this.field.append(tile.element);
    return tile;
  }

  private paint(tile: Tile, at: number): void {
    const { element } = tile;
    const row = this.rows[at] ?? 0;
    const [left, top] = this.layout.position(at);
    tile.at = at;
    element.style.width = tile.canvas.style.height = `${this.side}px`;
    element.style.transform = `translate(${left}px, ${top}px)`;
    this.updateState(tile, row);
    const position = { "aria-posinset": at + 1, "aria-setsize": this.rows.length };
    setAttributes(element, { id: `${this.element.id}-${row}`, "data-id": this.model.id(row), ...position });
    this.thumbnails.paint(tile.canvas, row);
  }

  private updateState(tile: Tile, row: number): void {
    const { element } = tile;
    tile.state = this.model.stateOf(row);
    element.style.setProperty("--class", classColour(this.model.labelOf(row), this.model.info.classes.length));
    element.classList.toggle("dropped", row < this.model.n && !this.model.kept(row));
    element.classList.toggle("overridden", this.model.overridden[row] === 1);
    const title = this.model.describe(row);
    setAttributes(element, { title, "aria-label": title });
    // Names may run from right to left, so each has an element of its own.
    const [name, remark] = [h("bdi", {}, this.model.className(row)), this.remark(row)];
    tile.caption.replaceChildren(name, ...(remark === null ? [] : [" ", remark]));
  }

  /** Update the tiles whose samples are now kept or dropped. */
  private updateStates(): void {
    for (const tile of this.tiles) {
      const row = this.rows[tile.at];
      if (row !== undefined && tile.state !== this.model.stateOf(row)) this.updateState(tile, row);
    }
  }

  private updateFocused(): void {
    this.focused = this.rows.indexOf(this.model.focus);
    this.left = -1;
  }

  private scrollToFocus(): void {
    this.updateFocused();
    if (this.focused >= 0) {
      const top = this.layout.position(this.focused)[1];
      const { scrollTop, clientHeight } = this.element;
      if (top < scrollTop || top + this.lineHeight > scrollTop + clientHeight) {
        this.element.scrollTop = Math.max(0, top - clientHeight / 2 + this.side / 2);
      }
    }
    // The request for an image that is missing may have failed: those tiles are painted again.
    for (const tile of this.tiles) if (tile.canvas.dataset["shown"] === undefined) tile.at = -1;
    this.render();
  }
}
