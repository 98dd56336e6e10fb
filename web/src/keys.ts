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
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.key === "Escape" && target.closest("dialog") === null) {
      target.blur();
      actions.escape();
      return;
    }
    if (typing(target) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.closest("dialog") !== null) return;
    const act = action(event.key, actions);
    if (act === null) return;
    event.preventDefault();
    act();
  });
}

function action(key: string, actions: Actions): (() => void) | null {
  switch (key) {
    case "ArrowLeft":
      return () => actions.step(-1, 0);
    case "ArrowRight":
      return () => actions.step(1, 0);
    case "ArrowUp":
      return () => actions.step(0, -1);
    case "ArrowDown":
      return () => actions.step(0, 1);
    case "PageDown":
      return () => actions.step(0, actions.page());
    case "PageUp":
      return () => actions.step(0, -actions.page());
    case "Home":
      return () => actions.end(false);
    case "End":
      return () => actions.end(true);
    case "k":
    case "K":
      return () => actions.decide(true, key === "K");
    case "d":
    case "D":
      return () => actions.decide(false, key === "D");
    case "u":
      return () => actions.undo();
    case "r":
      return () => actions.redo();
    case "/":
      return () => actions.search();
    case "l":
      return () => actions.lasso();
    case "f":
      return () => actions.fit();
    case "?":
      return () => actions.help();
    default:
      return null;
  }
}

function typing(target: HTMLElement): boolean {
  if (target instanceof HTMLInputElement) return target.type !== "checkbox";
  return target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement;
}
