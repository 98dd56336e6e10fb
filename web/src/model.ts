/** What the page knows: the samples, the decisions in force, and what the person is looking at. */

import type { Table, Vector } from "apache-arrow";
import { bytes, numbers } from "./arrow";
import type { ColourBy } from "./colours";
import { descending } from "./order";
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
  | "places"
  | "dropped"
  | "theme";

export type Show = "all" | "kept" | "dropped" | "overruled";
/** How dropped samples are drawn: in grey, as rings of their own colour, or like the others. */
export type DroppedStyle = "grey" | "ring" | "plain";
export const NO_ROW = -1;

/** How many there are, how many are dropped as shown, how many a person overruled. */
export interface Counts {
  total: number;
  dropped: number;
  overruled: number;
}

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
  /** The label that prevails around each sample; null until the server has worked it out. */
  place: Int16Array | null;
  readonly votes: Float32Array | null;
  /** What the filter itself keeps. */
  readonly filterKeep: Uint8Array;
  keep: Uint8Array;
  overruled: Uint8Array;
  /** 1 where a sample is kept as shown now: a person's decision, else the preview's, else the filter's. */
  shown = new Uint8Array();
  counts: Counts = { total: 0, dropped: 0, overruled: 0 };
  classCounts: Counts[] = [];
  undoable = 0;
  redoable = 0;
  preview: Preview | null = null;
  comparison: Comparison | null = null;
  colourBy: ColourBy = "class";
  show: Show = "all";
  /** Chosen by the person, per colouring: where the colour tells what is dropped, grey would hide it. */
  private readonly droppedStyles = new Map<ColourBy, DroppedStyle>([["class", "grey"]]);
  readonly hiddenClasses = new Set<number>();
  picked: Picked | null = null;
  focus = NO_ROW;
  private readonly ids: Vector;
  private readonly reasons: Vector | null;
  private readonly notes: Vector | null;
  private readonly listeners = new Map<Topic, Set<() => void>>();
  private byScore: Int32Array | null = null;
  private haystack: Haystack | null | undefined;

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
    this.place = numbers<Int16Array>(table, "place");
    this.votes = numbers<Float32Array>(table, "votes");
    this.filterKeep = bytes(table, "keep");
    this.keep = masks.keep;
    this.overruled = masks.overruled;
    this.undoable = masks.undo;
    this.redoable = masks.redo;
    this.settle();
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

  /** The first `limit` rows whose ids hold `text`, given in small letters. */
  find(text: string, limit: number): number[] {
    if (this.haystack === undefined) this.haystack = haystack(this.ids);
    const found: number[] = [];
    if (this.haystack === null) {
      for (let row = 0; row < this.n && found.length < limit; row++) {
        if (this.id(row).toLowerCase().includes(text)) found.push(row);
      }
      return found;
    }
    const { letters, ends } = this.haystack;
    let row = 0;
    let at = letters.indexOf(text);
    while (at >= 0 && found.length < limit) {
      while ((ends[row] ?? Infinity) <= at) row++;
      const end = ends[row] ?? Infinity;
      // What reaches into the next id is in neither.
      if (at + text.length <= end) found.push(row);
      at = letters.indexOf(text, at + text.length <= end ? end : at + 1);
    }
    return found;
  }

  className(row: number): string {
    return this.info.classes[this.label[row] ?? 0] ?? "?";
  }

  /** The class that a sample lies among where that is another than its label; else null. */
  among(row: number): string | null {
    const place = this.place?.[row] ?? this.label[row] ?? 0;
    return place === this.label[row] ? null : (this.info.classes[place] ?? "?");
  }

  reason(row: number): string {
    return String((this.notes ?? this.reasons)?.get(row) ?? "");
  }

  kept(row: number): boolean {
    return this.shown[row] === 1;
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

  /** 1 for each row that passes the filter, else 0; null if all pass. */
  visible(): Uint8Array | null {
    if (!this.filtered) return null;
    const { n, label, shown, overruled, show } = this;
    const hidden = new Uint8Array(this.info.classes.length);
    for (const one of this.hiddenClasses) hidden[one] = 1;
    const mask = new Uint8Array(n);
    for (let i = 0; i < n; i++) {
      if (hidden[label[i] as number] === 1) continue;
      if (show === "all") mask[i] = 1;
      else if (show === "overruled") mask[i] = overruled[i] as number;
      else mask[i] = show === "kept" ? (shown[i] as number) : 1 - (shown[i] as number);
    }
    return mask;
  }

  /** All rows, the most suspicious first; made once. */
  suspicious(): Int32Array {
    this.byScore ??= descending(this.score);
    return this.byScore;
  }

  setMasks(masks: Masks): void {
    this.keep = masks.keep;
    this.overruled = masks.overruled;
    this.undoable = masks.undo;
    this.redoable = masks.redo;
    this.settle();
    this.tell("decisions");
  }

  setPreview(preview: Preview | null): void {
    this.preview = preview;
    this.settle();
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

  get droppedStyle(): DroppedStyle {
    return this.droppedStyles.get(this.colourBy) ?? "plain";
  }

  setDroppedStyle(style: DroppedStyle): void {
    this.droppedStyles.set(this.colourBy, style);
    this.tell("dropped");
  }

  setPlaces(place: Int16Array): void {
    this.place = place;
    this.tell("places");
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

  /** Work out what is kept as shown, and count it: one pass for all that shows it. */
  private settle(): void {
    const { n, keep, overruled, label } = this;
    const base = this.preview?.keep ?? keep;
    const shown = new Uint8Array(n);
    const classes = this.info.classes.length;
    const total = new Int32Array(classes);
    const dropped = new Int32Array(classes);
    const decided = new Int32Array(classes);
    let out = 0;
    let hands = 0;
    for (let i = 0; i < n; i++) {
      const its = label[i] ?? 0;
      const hand = overruled[i] ?? 0;
      const kept = (hand ? keep[i] : base[i]) ?? 0;
      shown[i] = kept;
      out += 1 - kept;
      hands += hand;
      total[its] = (total[its] ?? 0) + 1;
      dropped[its] = (dropped[its] ?? 0) + 1 - kept;
      decided[its] = (decided[its] ?? 0) + hand;
    }
    this.shown = shown;
    this.classCounts = Array.from(total, (all, its) => ({
      total: all,
      dropped: dropped[its] ?? 0,
      overruled: decided[its] ?? 0,
    }));
    this.counts = { total: n, dropped: out, overruled: hands };
  }

  /** In words, for people and for screen readers. */
  describe(row: number): string {
    const state = this.kept(row) ? "kept" : "dropped";
    const by = this.overruled[row] ? " by hand" : "";
    const among = this.among(row);
    const where = among === null ? "" : `, lies among ${among}`;
    return `${this.className(row)}, ${state}${by}${where}, score ${(this.score[row] ?? 0).toPrecision(3)}, ${this.id(row)}`;
  }
}

/** All ids in small letters, one after the other, and where each ends: a million is searched at once. */
interface Haystack {
  letters: string;
  ends: Int32Array;
}

/** Null where the ids are not plain ASCII in one piece, and letters would not be bytes. */
function haystack(ids: Vector): Haystack | null {
  const [data, ...more] = ids.data;
  if (data === undefined || more.length > 0 || data.offset !== 0) return null;
  const offsets = data.valueOffsets as Int32Array;
  const bytes = (data.values as Uint8Array).subarray(0, offsets[data.length] ?? 0);
  const letters = new TextDecoder().decode(bytes).toLowerCase();
  return offsets[0] === 0 && letters.length === bytes.length ? { letters, ends: offsets.subarray(1) } : null;
}

function column(table: Table, name: string): Vector {
  const found = table.getChild(name);
  if (found === null) throw new Error(`the points have no column ${name}`);
  return found;
}
