/** The keyboard. Nothing here fires while someone types. */

export interface Actions {
  step(across: number, down: number): void;
  end(last: boolean): void;
  page(): number;
  decide(keep: boolean, all: boolean): void;
  undo(): void;
  redo(): void;
  search(): void;
  lasso(): void;
  fit(): void;
  escape(): void;
  help(): void;
}

export const KEYS: [string, string][] = [
  ["← ↑ → ↓", "through the gallery"],
  ["k / d", "keep / drop the sample in focus, or all that are picked"],
  ["K / D", "keep / drop all that are picked"],
  ["u / r", "undo / redo"],
  ["/", "find an id"],
  ["l", "lasso on and off (or hold shift)"],
  ["f", "fit the map"],
  ["Esc", "let go of focus, then of what is picked"],
  ["?", "this list"],
];

export function listen(actions: Actions): void {
  const table: Record<string, () => void> = {
    ArrowLeft: () => actions.step(-1, 0),
    ArrowRight: () => actions.step(1, 0),
    ArrowUp: () => actions.step(0, -1),
    ArrowDown: () => actions.step(0, 1),
    PageDown: () => actions.step(0, actions.page()),
    PageUp: () => actions.step(0, -actions.page()),
    Home: () => actions.end(false),
    End: () => actions.end(true),
    k: () => actions.decide(true, false),
    K: () => actions.decide(true, true),
    d: () => actions.decide(false, false),
    D: () => actions.decide(false, true),
    u: () => actions.undo(),
    r: () => actions.redo(),
    "/": () => actions.search(),
    l: () => actions.lasso(),
    f: () => actions.fit(),
    "?": () => actions.help(),
  };
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (target.closest("dialog") !== null) return;
    if (event.key === "Escape") {
      target.blur();
      actions.escape();
      return;
    }
    const act = table[event.key];
    if (act === undefined || typing(target) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
}

function typing(target: HTMLElement): boolean {
  if (target instanceof HTMLInputElement) return target.type !== "checkbox";
  return target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement;
}
