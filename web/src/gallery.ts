/** The gallery: thumbnails of the picked or filtered samples. */

import { arrowTo, button, count, h, select, setOptions } from "./dom";
import type { Section } from "./galleryLayout";
import type { Model } from "./model";
import { ascending, groupByLabels, groupStable, range } from "./sorting";
import type { Thumbnails } from "./thumbnails";
import { TileGrid } from "./tileGrid";

const ORDERS = {
  suspicious: ["Most suspicious first", (model: Model) => model.suspicious()],
  trusted: ["Least suspicious first", (model: Model) => ascending(model.score)],
  class: ["By class", (model: Model) => groupStable(model.suspicious(), model.label)],
  neighbourhood: ["By label → neighbourhood", (model: Model) => model.suspicious()],
  data: ["Order of the data set", (model: Model) => range(model.n)],
} as const;
type Order = keyof typeof ORDERS;

export class Gallery {
  readonly element: HTMLElement;
  readonly grid: TileGrid;
  private order: Order = "suspicious";
  private readonly title = h("h2", { className: "gallery-title", "aria-live": "polite" });
  private readonly clear = button("quiet", () => this.model.pick(null), { id: "clear" }, "Clear");

  constructor(private readonly model: Model, thumbnails: Thumbnails) {
    this.grid = new TileGrid(model, thumbnails, "gallery", "Samples. Arrow keys move, k keeps, d drops.", (row) => arrowTo(model.otherClasses(row)[0]));
    const order = select("sort", "Order of the gallery", (value) => {
      this.order = value as Order;
      this.refresh();
    });
    const orders = Object.entries(ORDERS).map(([value, [text]]) => [value, text] as const);
    setOptions(order, orders.filter(([value]) => value !== "neighbourhood" || model.info.layout === "map"), this.order);
    const top = h("div", { className: "row spread" }, this.title, this.clear, order);
    this.element = h("section", { className: "gallery", "aria-label": "Gallery" }, top, this.grid.element);
    model.on(["picked", "filter"], () => this.refresh());
    model.on(["decisions", "preview"], () => (model.filtered ? this.refresh(true) : undefined));
    model.on(["neighbourhood"], () => (this.order === "neighbourhood" ? this.refresh() : undefined));
    this.refresh();
  }

  private refresh(stay = false): void {
    const { picked, filtered, n } = this.model;
    const rows = this.filter(ORDERS[this.order][1](this.model));
    const text = picked !== null ? picked.title : filtered ? "filtered" : n === 0 ? "no samples" : "all samples";
    this.title.replaceChildren(...(n === 0 ? [] : [h("b", {}, count(rows.length)), " "]), text);
    this.clear.hidden = picked === null;
    const [ordered, sections] = this.order === "neighbourhood" ? this.grouped(rows) : [rows, [{ title: "", count: rows.length }]];
    this.grid.show(ordered, sections, stay);
  }

  /** Sections of the samples with the same label and neighbourhood. */
  private grouped(unordered: Int32Array): [Int32Array, Section[]] {
    const { neighbourhoodLabel, label, info } = this.model;
    if (neighbourhoodLabel === null) return [unordered, [{ title: "", count: unordered.length }]];
    const { rows, groups } = groupByLabels(unordered, label, neighbourhoodLabel);
    const sections = groups.map((group) => {
      const [own, other] = [info.classes[group.label] ?? "?", info.classes[group.other] ?? "?"];
      const text = group.label === group.other ? `${own}, among its own` : `labelled ${own}, lies among ${other}`;
      return { title: `${count(group.count)} ${text}`, count: group.count };
    });
    return [rows, sections];
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
    return mask === null ? rows : rows.filter((row) => mask[row] === 1);
  }
}
