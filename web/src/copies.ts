/** Near-copies side by side: what is kept of each group, and test images beside their twins in training. */

import { groupCopies, type CopyGroup, type CopyKind } from "./copyGroups";
import { errorText } from "./dataSource";
import { button, count, h, select, setOptions } from "./dom";
import type { Model } from "./model";
import type { Thumbnails } from "./thumbnails";
import { TileGrid } from "./tileGrid";

const KINDS: [CopyKind, string][] = [
  ["leakage", "groups with test images"],
  ["conflicts", "groups with different labels"],
  ["duplicates", "groups with one label"],
];
const UNKNOWN = "Nobody has looked for near-copies. `thresher audit` does, also between training and test images; `thresher select near-duplicates` does within each class.";

export class CopiesTab {
  readonly element: HTMLElement;
  readonly grid: TileGrid;
  private groups: CopyGroup[] | null = null;
  private measure = "";
  private readonly kind = select("copy-kind", "Which near-copies", () => this.showGroups());
  private readonly settle = button("act", () => void this.settleGroup(), { id: "settle", title: "For the group of the focused sample (o)" });
  private readonly note = h("p", { className: "note", role: "status" });

  constructor(private readonly model: Model, thumbnails: Thumbnails) {
    this.grid = new TileGrid(model, thumbnails, "copies", "Near-copies. Arrow keys move, k keeps, d drops, o settles a group.", (row) =>
      h("span", {}, model.outside[row - model.n]?.split ?? (model.kept(row) ? "kept" : "dropped")),
    );
    const top = h("div", { className: "row spread" }, this.kind, model.source.live ? this.settle : null);
    this.element = h("section", { className: "gallery", "aria-label": "Near-copies" }, top, this.note, this.grid.element);
    model.on(["focus"], () => (this.settle.disabled = this.focusedGroup() === undefined));
  }

  /** Load the groups when the tab is first shown. */
  async load(): Promise<void> {
    const { model } = this;
    if (this.groups !== null) return;
    try {
      const links = await model.source.copies();
      this.measure = links.measure;
      model.outside = links.outside;
      this.groups = groupCopies(links, model.label);
    } catch (error) {
      this.note.textContent = errorText(error);
      return;
    }
    const sizes = KINDS.map(([kind, text]) => [kind, text, this.ofKind(kind).length] as const);
    const some = sizes.filter(([, , size]) => size > 0);
    setOptions(this.kind, some.map(([kind, text, size]) => [kind, `${count(size)} ${text}`] as const), some[0]?.[0] ?? "");
    for (const field of [this.kind, this.settle, this.grid.element]) field.hidden = some.length === 0;
    this.showGroups();
  }

  /** Drop all copies of a test image; of other copies, keep the focused one and drop the rest. */
  async settleGroup(): Promise<void> {
    const { model } = this;
    const group = this.focusedGroup();
    if (group === undefined) return;
    const leaked = group.kind === "leakage";
    const [stays, rows] = [leaked ? (group.rows[0] ?? 0) : model.focus, group.rows.filter((row) => row < model.n)];
    // What only the preview keeps or drops still needs a decision.
    if (!leaked && !(model.keep[stays] === 1 && model.kept(stays)) && !(await model.decide([stays], true, ""))) return;
    await model.decide(rows.filter((row) => row !== stays && (model.keep[row] === 1 || model.kept(row))), false, `near-copy of ${model.id(stays)}`.slice(0, 200));
  }

  private ofKind(kind: string): CopyGroup[] {
    return (this.groups ?? []).filter((group) => group.kind === kind);
  }

  private focusedGroup(): CopyGroup | undefined {
    return this.ofKind(this.kind.value).find((group) => group.rows.includes(this.model.focus));
  }

  private showGroups(): void {
    const groups = this.ofKind(this.kind.value);
    const sections = groups.map(({ rows, similarity }) => {
      const outside = rows.filter((row) => row >= this.model.n).length;
      const parts = outside === 0 ? `${count(rows.length)} copies` : `${count(outside)} outside of training, ${count(rows.length - outside)} in training`;
      return { title: `${parts}, similarity ${similarity.toFixed(4)}`, count: rows.length };
    });
    this.settle.textContent = this.kind.value === "leakage" ? "Drop all" : "Keep only this";
    this.settle.disabled = this.focusedGroup() === undefined;
    const found = groups.length === 0 ? "There are no near-copies." : `Similarity: ${this.measure}, the lowest of a group.`;
    this.note.textContent = this.measure === "" ? UNKNOWN : found;
    this.grid.show(Int32Array.from(groups.flatMap((group) => group.rows)), sections);
  }
}
