/** Light or dark: the setting of the system until the user chooses. */

const KEY = "thresher-theme";

export function isDark(): boolean {
  return document.documentElement.dataset["theme"] === "dark";
}

export function startTheme(): void {
  const chosen = new URL(location.href).searchParams.get("theme") ?? storage((store) => store.getItem(KEY));
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset["theme"] = chosen === "dark" || chosen === "light" ? chosen : system;
}

export function toggleTheme(): void {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset["theme"] = theme;
  storage((store) => store.setItem(KEY, theme));
}

/** A sandboxed frame has no storage; the choice then lasts as long as the page. */
function storage<T>(access: (store: Storage) => T): T | null {
  try {
    return access(localStorage);
  } catch {
    return null;
  }
}
