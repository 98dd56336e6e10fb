/** Where the tiles of the gallery stand: lines of tiles in sections, each with a heading or without. */

export interface Section {
  /** Empty for no heading. */
  title: string;
  count: number;
}

export interface Placed extends Section {
  /** The number of its first tile. */
  first: number;
  /** Pixels from the top of the field to its heading. */
  top: number;
}

export interface Measures {
  columns: number;
  /** Pixels from a tile to the next one, across and down. */
  across: number;
  down: number;
  /** Pixels above the first line, and of a heading. */
  gap: number;
  heading: number;
}

export class GalleryLayout {
  readonly sections: Placed[] = [];
  readonly height: number;
  readonly tiles: number;

  constructor(
    sections: Section[],
    private readonly size: Measures,
  ) {
    let [first, top] = [0, size.gap];
    for (const section of sections) {
      if (section.count === 0) continue;
      this.sections.push({ ...section, first, top });
      first += section.count;
      top += this.headingOf(section) + this.lines(section) * size.down;
    }
    this.tiles = first;
    this.height = top;
  }

  /** The upper left corner of a tile. */
  position(tile: number): [left: number, top: number] {
    const section = this.sectionOf(tile);
    if (section === undefined) return [this.size.gap, this.size.gap];
    const inside = tile - section.first;
    const line = Math.floor(inside / this.size.columns);
    return [
      this.size.gap + (inside % this.size.columns) * this.size.across,
      section.top + this.headingOf(section) + line * this.size.down,
    ];
  }

  /** The tiles from one height to another, as [first, end), and the sections that they belong to. */
  inSight(from: number, to: number): { first: number; end: number; sections: Placed[] } {
    const seen = this.sections.filter((section) => section.top < to && this.bottom(section) > from);
    const [head, tail] = [seen[0], seen[seen.length - 1]];
    if (head === undefined || tail === undefined) return { first: 0, end: 0, sections: [] };
    const line = (section: Placed, height: number): number => (height - section.top - this.headingOf(section)) / this.size.down;
    const before = Math.max(0, Math.floor(line(head, from))) * this.size.columns;
    const until = Math.max(0, Math.ceil(line(tail, to))) * this.size.columns;
    return { first: head.first + Math.min(before, head.count), end: tail.first + Math.min(until, tail.count), sections: seen };
  }

  /** The tile reached from another by so many steps across and lines down. */
  step(tile: number, across: number, down: number): number {
    let at = this.clamp(tile + across);
    for (let left = Math.abs(down); left > 0; left--) at = down > 0 ? this.below(at) : this.above(at);
    return at;
  }

  private below(tile: number): number {
    const section = this.sectionOf(tile);
    if (section === undefined) return tile;
    const { columns } = this.size;
    const inside = tile - section.first;
    if (inside + columns < section.count) return tile + columns;
    // A shorter last line: its end. On the last line: the next section.
    if (Math.floor(inside / columns) < this.lines(section) - 1) return section.first + section.count - 1;
    const next = this.sections[this.sections.indexOf(section) + 1];
    return next === undefined ? tile : next.first + Math.min(inside % columns, next.count - 1);
  }

  private above(tile: number): number {
    const section = this.sectionOf(tile);
    if (section === undefined) return tile;
    const { columns } = this.size;
    const inside = tile - section.first;
    if (inside >= columns) return tile - columns;
    const previous = this.sections[this.sections.indexOf(section) - 1];
    if (previous === undefined) return tile;
    const line = (this.lines(previous) - 1) * columns;
    return previous.first + Math.min(line + inside, previous.count - 1);
  }

  private sectionOf(tile: number): Placed | undefined {
    let [low, high] = [0, this.sections.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((this.sections[middle]?.first ?? Infinity) <= tile) low = middle;
      else high = middle - 1;
    }
    return this.sections[low];
  }

  private bottom(section: Placed): number {
    return section.top + this.headingOf(section) + this.lines(section) * this.size.down;
  }

  private lines(section: Section): number {
    return Math.ceil(section.count / this.size.columns);
  }

  private headingOf(section: Section): number {
    return section.title === "" ? 0 : this.size.heading;
  }

  private clamp(tile: number): number {
    return Math.max(0, Math.min(this.tiles - 1, tile));
  }
}
