/** The state of the page: the samples, the decisions in force, and what the user looks at. */

import type { Table, Vector } from "apache-arrow";
import { numbers } from "./arrow";
import { count } from "./dom";
import { errorText, type Comparison, type DataSource, type Decisions, type Info, type OutsideSample, type Preview } from "./dataSource";
import { descending } from "./sorting";

/** What changed; `on` subscribes to it. */
export type Topic =
  | "decisions" | "preview" | "comparison" | "selections" | "neighbourhood" | "message"
  | "colour" | "dropped" | "filter" | "picked" | "focus" | "theme";

export type Show = "all" | "kept" | "dropped" | "overridden";
/** What the colour of a sample shows. */
export type ColourBy = "class" | "decision" | "cluster" | "neighbourhood" | "score" | "votes" | "comparison";
/** How dropped samples are drawn: grey, as rings, or like kept ones. */
export type DroppedStyle = "grey" | "ring" | "plain";
export const NO_ROW = -1;

export interface Counts {
  total: number;
  dropped: number;
  overridden: number;
}

export class Model {
  readonly n: number;
  /** The class of each sample: the one that a person gave, else that of the pack. */
  label: Int16Array = new Int16Array();
  readonly x: Float32Array;
  readonly y: Float32Array;
  readonly cluster: Int32Array;
  readonly score: Float32Array;
  readonly votes: Float32Array | null;
  /** The class that the filter says each sample belongs to, -1 for none; null if it says so of no sample. */
  readonly suggestedLabel: Int16Array | null;
  /** The majority label around each sample; null until the server has computed it. */
  neighbourhoodLabel: Int16Array | null;
  /** Decisions in force, without the preview. */
  keep: Uint8Array = new Uint8Array();
  /** 1 where a person decided. */
  overridden: Uint8Array = new Uint8Array();
  newLabel: Int16Array | null = null;
  /** 1 where a sample is kept: by a person, else by the preview, else by the filter. */
  shown: Uint8Array = new Uint8Array();
  counts: Counts = { total: 0, dropped: 0, overridden: 0 };
  classCounts: Counts[] = [];
  undoable = 0;
  redoable = 0;
  preview: Preview | null = null;
  comparison: Comparison | null = null;
  colourBy: ColourBy = "class";
  show: Show = "all";
  hiddenClasses: ReadonlySet<number> = new Set();
  /** Images that are near-copies of samples, such as test images; as rows they follow the samples. */
  outside: OutsideSample[] = [];
  picked: { rows: Int32Array; title: string } | null = null;
  focus = NO_ROW;
  message = { text: "", isError: false };
  /** Chosen per colouring: where the colour shows what is dropped, grey would hide it. */
  private readonly droppedStyles = new Map<ColourBy, DroppedStyle>([["class", "grey"]]);
  private readonly ids: Vector;
  private readonly reasons: Vector | null;
  private readonly packLabel: Int16Array;
  private readonly listeners = new Map<Topic, Set<() => void>>();
  private byScore: Int32Array | null = null;
  private searchIndex: SearchIndex | null = null;
  private visibleMask: Uint8Array | null = null;
  /** Samples per class. */
  private totals = new Int32Array();
  /** Number of requests for decisions, and of the latest one whose answer is shown. */
  private requests = 0;
  private newest = 0;

  constructor(readonly source: DataSource, readonly info: Info, table: Table, decisions: Decisions) {
    const ids = table.getChild("id");
    if (ids === null) throw new Error("The points have no column id.");
    this.n = table.numRows;
    this.ids = ids;
    // An export replaces the filter's reasons by those of people in the column note.
    this.reasons = table.getChild("note") ?? table.getChild("reason");
    this.packLabel = numbers<Int16Array>(table, "label") ?? new Int16Array(this.n);
    this.x = numbers<Float32Array>(table, "x") ?? new Float32Array(this.n);
    this.y = numbers<Float32Array>(table, "y") ?? new Float32Array(this.n);
    this.cluster = numbers<Int32Array>(table, "cluster") ?? new Int32Array(this.n).fill(-2);
    this.score = numbers<Float32Array>(table, "score") ?? new Float32Array(this.n);
    this.neighbourhoodLabel = numbers<Int16Array>(table, "place");
    this.votes = numbers<Float32Array>(table, "votes");
    this.suggestedLabel = numbers<Int16Array>(table, "suggested");
    this.setDecisions(decisions);
  }

  on(topics: Topic[], listener: () => void): void {
    for (const topic of topics) {
      this.listeners.set(topic, (this.listeners.get(topic) ?? new Set()).add(listener));
    }
  }

  emit(topic: Topic): void {
    for (const listener of this.listeners.get(topic) ?? []) listener();
  }

  // Samples ------------------------------------------------------------------------------------

  id(row: number): string {
    return this.outside[row - this.n]?.id ?? String(this.ids.get(row));
  }

  labelOf(row: number): number {
    return this.label[row] ?? this.outside[row - this.n]?.label ?? 0;
  }

  className(row: number): string {
    return this.info.classes[this.labelOf(row)] ?? "?";
  }

  /** Everything about a row that decisions change, as text to compare. */
  stateOf(row: number): string {
    return `${this.shown[row]}${this.overridden[row]}${this.newLabel?.[row] ?? -1}`;
  }

  /** The class that a text means: by name, by number, or as the only one that begins so; else -1. */
  findClass(text: string): number {
    const { classes } = this.info;
    // Names may differ only in case or in spaces, so what is written exactly so comes first.
    for (const one of [text, text.trim()]) if (classes.includes(one)) return classes.indexOf(one);
    const wanted = text.trim().toLowerCase();
    const names = classes.map((name) => name.toLowerCase());
    const beginning = names.flatMap((name, n) => (wanted !== "" && name.startsWith(wanted) ? [n] : []));
    const same = beginning.filter((n) => names[n] === wanted);
    const [first, second] = same.length > 0 ? same : beginning;
    if (first !== undefined) return second === undefined ? first : -1;
    return /^\d{1,9}$/.test(wanted) && Number(wanted) < names.length ? Number(wanted) : -1;
  }

  /** Other classes for a sample that nobody gave a label, likeliest first: the filter's suggestion, then the class around it. */
  otherClasses(row: number): string[] {
    if ((this.newLabel?.[row] ?? -1) >= 0) return [];
    const own = this.labelOf(row);
    const labels = [this.suggestedLabel?.[row] ?? -1, this.neighbourhoodLabel?.[row] ?? own].filter((label) => label >= 0 && label !== own);
    return [...new Set(labels)].map((label) => this.info.classes[label] ?? "?");
  }

  reason(row: number): string {
    return String(this.reasons?.get(row) ?? "");
  }

  kept(row: number): boolean {
    return this.shown[row] === 1;
  }

  /** One line for tooltips and screen readers; it contains the caption of a tile, `cat → dog`, for speech control. */
  describe(row: number): string {
    const outside = this.outside[row - this.n];
    if (outside !== undefined) return `${this.className(row)}, ${outside.split} image, ${outside.id}`;
    const state = (this.kept(row) ? "kept" : "dropped") + (this.overridden[row] ? " by hand" : "") + ((this.newLabel?.[row] ?? -1) < 0 ? "" : ", new label");
    const [first, second] = this.otherClasses(row);
    const how = (this.suggestedLabel?.[row] ?? -1) < 0 ? "lies among" : "probably";
    const other = first === undefined ? "" : `, ${how} ${first}: ${this.className(row)} → ${first}${second === undefined ? "" : `, lies among ${second}`}`;
    return `${this.className(row)}, ${state}${other}, score ${(this.score[row] ?? 0).toPrecision(3)}, ${this.id(row)}`;
  }

  /** The rows whose ids contain `text` in any case: first the id that is equal, then those equal but for case. */
  find(text: string): number[] {
    const { letters, ends } = (this.searchIndex ??= indexIds(this.ids));
    const wanted = text.toLowerCase();
    const [whole, rows]: [number[], number[]] = [[], []];
    let row = 0;
    let at = letters.indexOf(wanted);
    while (at >= 0) {
      while ((ends[row] ?? Infinity) <= at) row++;
      const end = ends[row] ?? Infinity;
      // A match that reaches into the next id is in neither.
      const inside = at + wanted.length <= end;
      if (inside) (at + wanted.length === end && at === (ends[row - 1] ?? 0) ? whole : rows).push(row);
      at = letters.indexOf(wanted, inside ? end : at + 1);
    }
    const isEqual = (one: number): number => Number(this.id(one) === text);
    return [...whole.sort((a, b) => isEqual(b) - isEqual(a)), ...rows];
  }

  /** The `k` samples nearest to `row` on the map, nearest first. */
  nearest(row: number, k: number): number[] {
    const best: { row: number; distance: number }[] = [];
    const [x0, y0] = [this.x[row] ?? 0, this.y[row] ?? 0];
    let worst = Infinity;
    for (let i = 0; i < this.n; i++) {
      const dx = (this.x[i] as number) - x0;
      const dy = (this.y[i] as number) - y0;
      const distance = dx * dx + dy * dy;
      if (distance >= worst || i === row) continue;
      const at = best.findIndex((one) => one.distance > distance);
      best.splice(at < 0 ? best.length : at, 0, { row: i, distance });
      if (best.length > k) best.pop();
      if (best.length === k) worst = best[k - 1]?.distance ?? Infinity;
    }
    return best.map((one) => one.row);
  }

  /** All rows, most suspicious first; cached. */
  suspicious(): Int32Array {
    return (this.byScore ??= descending(this.score));
  }

  /** Rows for which `condition` holds, ascending. */
  rowsWhere(condition: (row: number) => boolean): number[] {
    const rows: number[] = [];
    for (let row = 0; row < this.n; row++) if (condition(row)) rows.push(row);
    return rows;
  }

  get filtered(): boolean {
    return this.hiddenClasses.size > 0 || this.show !== "all";
  }

  /** 1 for each row that passes the filter, else 0; null if all pass. Cached. */
  visible(): Uint8Array | null {
    return this.filtered ? (this.visibleMask ??= this.computeVisible()) : null;
  }

  private computeVisible(): Uint8Array {
    const { n, label, shown, overridden, show } = this;
    const hidden = new Uint8Array(this.info.classes.length);
    for (const one of this.hiddenClasses) hidden[one] = 1;
    const mask = new Uint8Array(n);
    for (let i = 0; i < n; i++) {
      if (hidden[label[i] as number] === 1) continue;
      if (show === "all") mask[i] = 1;
      else if (show === "overridden") mask[i] = overridden[i] as number;
      else mask[i] = show === "kept" ? (shown[i] as number) : 1 - (shown[i] as number);
    }
    return mask;
  }

  // Changes ------------------------------------------------------------------------------------

  setDecisions({ keep, overridden, newLabel, undo, redo }: Decisions): void {
    [this.keep, this.overridden, this.newLabel, this.undoable, this.redoable] = [keep, overridden, newLabel, undo, redo];
    this.label = newLabel?.map((given, row) => (given < 0 ? (this.packLabel[row] as number) : given)) ?? this.packLabel;
    this.totals = new Int32Array(this.info.classes.length);
    for (const label of this.label) (this.totals[label] as number) += 1;
    this.updateShown();
    this.emit("decisions");
  }

  /** Request decisions and show them, unless others that were requested later are shown already. */
  async load(request: () => Promise<Decisions>): Promise<Decisions> {
    const turn = ++this.requests;
    const decisions = await request();
    if (turn < this.newest) return decisions;
    this.newest = turn;
    this.setDecisions(decisions);
    return decisions;
  }

  /** Record a decision; returns whether it was saved. */
  async decide(rows: number[], keep: boolean, reason: string, label: number | null = null): Promise<boolean> {
    const ids = rows.map((row) => this.id(row));
    const what = ids.length === 1 ? (ids[0] ?? "") : `${count(ids.length)} samples`;
    const text = label === null ? `${keep ? "Kept" : "Dropped"} ${what}.` : `Labelled ${what} as ${this.info.classes[label]}.`;
    return ids.length > 0 && (await this.change(() => this.source.decide(ids, keep, reason, label), text));
  }

  undo(): void {
    if (this.undoable > 0) void this.change(() => this.source.undo(), "Undone.");
  }

  redo(): void {
    if (this.redoable > 0) void this.change(() => this.source.redo(), "Redone.");
  }

  setPreview(preview: Preview | null): void {
    this.preview = preview;
    this.updateShown();
    this.emit("preview");
  }

  setComparison(comparison: Comparison | null): void {
    this.comparison = comparison;
    this.emit("comparison");
  }

  setColour(by: ColourBy): void {
    this.colourBy = by;
    this.emit("colour");
  }

  get droppedStyle(): DroppedStyle {
    return this.droppedStyles.get(this.colourBy) ?? "plain";
  }

  setDroppedStyle(style: DroppedStyle): void {
    this.droppedStyles.set(this.colourBy, style);
    this.emit("dropped");
  }

  setNeighbourhoodLabels(labels: Int16Array): void {
    this.neighbourhoodLabel = labels;
    this.emit("neighbourhood");
  }

  setShow(show: Show): void {
    this.show = show;
    this.hideClasses(this.hiddenClasses);
  }

  hideClasses(hidden: Iterable<number>): void {
    this.hiddenClasses = new Set(hidden);
    this.visibleMask = null;
    this.emit("filter");
  }

  pick(rows: ArrayLike<number> | null, title = ""): void {
    this.picked = rows === null || rows.length === 0 ? null : { rows: Int32Array.from(rows), title };
    this.emit("picked");
  }

  setFocus(row: number): void {
    if (row === this.focus) return;
    this.focus = row;
    this.emit("focus");
  }

  /** Show a short message to the user. */
  notify(text: string, isError = false): void {
    this.message = { text, isError };
    this.emit("message");
  }

  /** Run `action`; show the error if it fails. */
  async attempt(action: () => Promise<void>): Promise<void> {
    await action().catch((error: unknown) => this.notify(errorText(error), true));
  }

  private async change(request: () => Promise<Decisions>, text: string): Promise<boolean> {
    if (!this.source.live) return false;
    try {
      const { moved } = await this.load(request);
      this.notify(moved === undefined ? text : `${text.slice(0, -1)}: ${moved}.`);
    } catch (error) {
      this.notify(`Not saved: ${errorText(error)}`, true);
      return false;
    }
    return true;
  }

  /** Update `shown` and all counts in one pass. */
  private updateShown(): void {
    const { n, keep, overridden, label } = this;
    const base = this.preview?.keep ?? keep;
    const shown = new Uint8Array(n);
    const [dropped, decided] = [new Int32Array(this.totals.length), new Int32Array(this.totals.length)];
    for (let i = 0; i < n; i++) {
      let kept = base[i] as number;
      if (overridden[i] === 1) {
        kept = keep[i] as number;
        (decided[label[i] as number] as number) += 1;
      }
      shown[i] = kept;
      if (kept === 0) (dropped[label[i] as number] as number) += 1;
    }
    this.shown = shown;
    this.visibleMask = null;
    this.classCounts = Array.from(this.totals, (total, its) => ({ total, dropped: dropped[its] ?? 0, overridden: decided[its] ?? 0 }));
    const sum = (counts: Int32Array): number => counts.reduce((a, b) => a + b, 0);
    this.counts = { total: n, dropped: sum(dropped), overridden: sum(decided) };
  }
}

/** All ids in lower case, concatenated, and where each ends: searching a million takes milliseconds. */
interface SearchIndex {
  letters: string;
  ends: Int32Array;
}

function indexIds(ids: Vector): SearchIndex {
  const [data, ...more] = ids.data;
  if (data !== undefined && more.length === 0 && data.offset === 0) {
    const offsets = data.valueOffsets as Int32Array;
    const text = (data.values as Uint8Array).subarray(0, offsets[data.length] ?? 0);
    const letters = new TextDecoder().decode(text).toLowerCase();
    // In ASCII a letter is a byte, and Arrow's offsets can be used as they are.
    if (offsets[0] === 0 && letters.length === text.length) return { letters, ends: offsets.subarray(1) };
  }
  const texts = Array.from(ids, (id) => String(id).toLowerCase());
  let end = 0;
  return { letters: texts.join(""), ends: Int32Array.from(texts, (text) => (end += text.length)) };
}
