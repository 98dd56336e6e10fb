/** What the page knows: the samples, the decisions in force, and what the person is looking at. */

import type { Table, Vector } from "apache-arrow";
import { bytes, numbers } from "./arrow";
import type { ColourBy } from "./colours";
import type { Comparison, Info, Masks, Preview, Source } from "./source";

export type Topic =
  | "decisions"
  | "preview"
  | "comparison"
  | "colour"
  | "filter"
  | "picked"
  | "focus"
  | "selections"
  | "theme";

export type Show = "all" | "kept" | "dropped" | "overruled";
export const NO_ROW = -1;

export interface Picked {
  rows: Int32Array;
  why: string;
}

export class Model {
  readonly n: number;
  readonly label: Int16Array;
  readonly x: Float32Array;
  readonly y: Float32Array;
  readonly cluster: Int32Array;
  readonly score: Float32Array;
  readonly place: Int16Array;
  readonly votes: Float32Array | null;
  /** What the filter itself keeps. */
  readonly filterKeep: Uint8Array;
  keep: Uint8Array;
  overruled: Uint8Array;
  undoable = 0;
  redoable = 0;
  preview: Preview | null = null;
  comparison: Comparison | null = null;
  colourBy: ColourBy = "class";
  show: Show = "all";
  readonly hiddenClasses = new Set<number>();
  picked: Picked | null = null;
  focus = NO_ROW;
  private readonly ids: Vector;
  private readonly reasons: Vector | null;
  private readonly notes: Vector | null;
  private readonly listeners = new Map<Topic, Set<() => void>>();
  private byScore: Int32Array | null = null;

  constructor(
    readonly source: Source,
    readonly info: Info,
    table: Table,
    masks: Masks,
  ) {
    this.n = table.numRows;
    this.ids = column(table, "id");
    this.reasons = table.getChild("reason");
    this.notes = table.getChild("note");
    this.label = numbers<Int16Array>(table, "label") ?? new Int16Array(this.n);
    this.x = numbers<Float32Array>(table, "x") ?? new Float32Array(this.n);
    this.y = numbers<Float32Array>(table, "y") ?? new Float32Array(this.n);
    this.cluster = numbers<Int32Array>(table, "cluster") ?? new Int32Array(this.n).fill(-2);
    this.score = numbers<Float32Array>(table, "score") ?? new Float32Array(this.n);
    this.place = numbers<Int16Array>(table, "place") ?? this.label;
    this.votes = numbers<Float32Array>(table, "votes");
    this.filterKeep = bytes(table, "keep");
    this.keep = masks.keep;
    this.overruled = masks.overruled;
    this.undoable = masks.undo;
    this.redoable = masks.redo;
  }

  on(topics: Topic[], listener: () => void): void {
    for (const topic of topics) {
      const known = this.listeners.get(topic) ?? new Set();
      this.listeners.set(topic, known.add(listener));
    }
  }

  tell(topic: Topic): void {
    for (const listener of this.listeners.get(topic) ?? []) listener();
  }

  id(row: number): string {
    return String(this.ids.get(row));
  }

  className(row: number): string {
    return this.info.classes[this.label[row] ?? 0] ?? "?";
  }

  reason(row: number): string {
    return String((this.notes ?? this.reasons)?.get(row) ?? "");
  }

  /** Whether a sample is kept as shown now: a person's decision, else the preview's, else the filter's. */
  kept(row: number): boolean {
    if (this.preview !== null && !this.overruled[row]) return this.preview.keep[row] === 1;
    return this.keep[row] === 1;
  }

  passes(row: number): boolean {
    if (this.hiddenClasses.has(this.label[row] ?? 0)) return false;
    switch (this.show) {
      case "all":
        return true;
      case "kept":
        return this.kept(row);
      case "dropped":
        return !this.kept(row);
      case "overruled":
        return this.overruled[row] === 1;
    }
  }

  get filtered(): boolean {
    return this.hiddenClasses.size > 0 || this.show !== "all";
  }

  /** Rows that pass the filter, ascending. */
  passing(): number[] {
    const rows: number[] = [];
    for (let i = 0; i < this.n; i++) if (this.passes(i)) rows.push(i);
    return rows;
  }

  /** All rows, the most suspicious first; made once. */
  suspicious(): Int32Array {
    if (this.byScore === null) {
      const score = this.score;
      this.byScore = Int32Array.from({ length: this.n }, (_, i) => i).sort(
        (a, b) => (score[b] ?? 0) - (score[a] ?? 0) || a - b,
      );
    }
    return this.byScore;
  }

  setMasks(masks: Masks): void {
    this.keep = masks.keep;
    this.overruled = masks.overruled;
    this.undoable = masks.undo;
    this.redoable = masks.redo;
    this.tell("decisions");
  }

  setPreview(preview: Preview | null): void {
    this.preview = preview;
    this.tell("preview");
  }

  setComparison(comparison: Comparison | null): void {
    this.comparison = comparison;
    this.tell("comparison");
  }

  setColour(by: ColourBy): void {
    this.colourBy = by;
    this.tell("colour");
  }

  setShow(show: Show): void {
    this.show = show;
    this.tell("filter");
  }

  hideClasses(hidden: Iterable<number>): void {
    this.hiddenClasses.clear();
    for (const label of hidden) this.hiddenClasses.add(label);
    this.tell("filter");
  }

  pick(rows: ArrayLike<number> | null, why = ""): void {
    this.picked = rows === null || rows.length === 0 ? null : { rows: Int32Array.from(rows), why };
    this.tell("picked");
  }

  setFocus(row: number): void {
    if (row === this.focus) return;
    this.focus = row;
    this.tell("focus");
  }

  /** The `k` samples nearest to `row` on the map, nearest first. */
  nearest(row: number, k: number): number[] {
    const best: { row: number; d: number }[] = [];
    const x0 = this.x[row] ?? 0;
    const y0 = this.y[row] ?? 0;
    let worst = Infinity;
    for (let i = 0; i < this.n; i++) {
      const dx = (this.x[i] ?? 0) - x0;
      const dy = (this.y[i] ?? 0) - y0;
      const d = dx * dx + dy * dy;
      if (d >= worst || i === row) continue;
      let at = best.length;
      while (at > 0 && (best[at - 1]?.d ?? 0) > d) at--;
      best.splice(at, 0, { row: i, d });
      if (best.length > k) best.pop();
      if (best.length === k) worst = best[k - 1]?.d ?? Infinity;
    }
    return best.map((found) => found.row);
  }

  /** Per class: how many there are, how many are dropped as shown, how many a person overruled. */
  perClass(): { total: number; dropped: number; overruled: number }[] {
    const rows = this.info.classes.map(() => ({ total: 0, dropped: 0, overruled: 0 }));
    for (let i = 0; i < this.n; i++) {
      const its = rows[this.label[i] ?? 0];
      if (its === undefined) continue;
      its.total++;
      if (!this.kept(i)) its.dropped++;
      if (this.overruled[i]) its.overruled++;
    }
    return rows;
  }

  /** In words, for people and for screen readers. */
  describe(row: number): string {
    const state = this.kept(row) ? "kept" : "dropped";
    const by = this.overruled[row] ? " by hand" : "";
    return `${this.className(row)}, ${state}${by}, score ${(this.score[row] ?? 0).toPrecision(3)}, ${this.id(row)}`;
  }
}

function column(table: Table, name: string): Vector {
  const found = table.getChild(name);
  if (found === null) throw new Error(`the points have no column ${name}`);
  return found;
}
