/** Positions of the tiles of the gallery: lines of tiles in sections, each with an optional heading. */

export interface Section {
  /** Empty for no heading. */
  title: string;
  count: number;
}

export interface PlacedSection extends Section {
  /** Index of its first tile. */
  first: number;
  /** Pixels from the top of the gallery to its heading, and to its first line. */
  top: number;
  content: number;
  lines: number;
}

/** Sizes in pixels; `across` and `down` are the distances from one tile to the next. */
export interface TileSizes {
  columns: number;
  across: number;
  down: number;
  gap: number;
  heading: number;
}

export class GalleryLayout {
  readonly sections: PlacedSection[] = [];
  readonly height: number;
  readonly tiles: number;

  constructor(sections: Section[], private readonly sizes: TileSizes) {
    let [first, top] = [0, sizes.gap];
    for (const section of sections) {
      if (section.count === 0) continue;
      const content = top + (section.title === "" ? 0 : sizes.heading);
      const lines = Math.ceil(section.count / sizes.columns);
      this.sections.push({ ...section, first, top, content, lines });
      first += section.count;
      top = content + lines * sizes.down;
    }
    this.tiles = first;
    this.height = top;
  }

  /** The top left corner of a tile. */
  position(tile: number): [left: number, top: number] {
    const { gap, columns, across, down } = this.sizes;
    const section = this.sections[this.sectionOf(tile)];
    if (section === undefined) return [gap, gap];
    const index = tile - section.first;
    return [gap + (index % columns) * across, section.content + Math.floor(index / columns) * down];
  }

  /** The tiles between two heights, as [first, end), and their sections. */
  visible(from: number, to: number): { first: number; end: number; sections: PlacedSection[] } {
    const { columns, down } = this.sizes;
    const sections = this.sections.filter(({ top, content, lines }) => top < to && content + lines * down > from);
    const [head, tail] = [sections[0], sections[sections.length - 1]];
    if (head === undefined || tail === undefined) return { first: 0, end: 0, sections };
    const before = Math.max(0, Math.floor((from - head.content) / down)) * columns;
    const until = Math.max(0, Math.ceil((to - tail.content) / down)) * columns;
    return { first: head.first + Math.min(before, head.count), end: tail.first + Math.min(until, tail.count), sections };
  }

  /** The tile so many tiles to the right and lines down. */
  step(tile: number, across: number, down: number): number {
    let at = Math.max(0, Math.min(this.tiles - 1, tile + across));
    for (let left = Math.abs(down); left > 0; left--) at = this.stepLine(at, Math.sign(down));
    return at;
  }

  /** The tile one line down or up, in the same column if that line has one. */
  private stepLine(tile: number, direction: number): number {
    const { columns } = this.sizes;
    const at = this.sectionOf(tile);
    const section = this.sections[at];
    if (section === undefined) return tile;
    const column = (tile - section.first) % columns;
    const line = Math.floor((tile - section.first) / columns) + direction;
    const inside = line >= 0 && line < section.lines;
    const target = inside ? section : this.sections[at + direction];
    if (target === undefined) return tile;
    const targetLine = inside ? line : direction > 0 ? 0 : target.lines - 1;
    return target.first + Math.min(targetLine * columns + column, target.count - 1);
  }

  private sectionOf(tile: number): number {
    return Math.max(0, this.sections.findLastIndex((section) => section.first <= tile));
  }
}
