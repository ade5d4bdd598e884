// What the frame of a page does: the theme, the user's menu, the place in the main menu.
// Loaded before the stylesheet, so that the first paint has the chosen theme. The key and its
// values are those of Django's admin: one choice holds for both.
"use strict";
(() => {
    const root = document.documentElement;
    const THEMES = ["auto", "light", "dark"];
    const ICONS = { auto: "auto", light: "sun", dark: "moon" };

    function storedTheme() {
        try {
            return localStorage.getItem("theme");
        } catch {
            return null; // Storage is forbidden here: the system's theme it is.
        }
    }
    function setTheme(theme) {
        root.dataset.theme = theme;
        try {
            localStorage.setItem("theme", theme);
        } catch {
            // Not remembered, then.
        }
    }
    function showTheme(button) {
        button.querySelector("use").setAttribute("href", `#i-${ICONS[root.dataset.theme]}`);
        button.querySelector("[data-theme-word]").textContent = `Theme: ${root.dataset.theme}`;
    }
    function nextTheme() {
        // From "auto" first to what looks different.
        const dark = matchMedia("(prefers-color-scheme: dark)").matches;
        const order = dark ? THEMES : ["auto", "dark", "light"];
        setTheme(order[(order.indexOf(root.dataset.theme) + 1) % order.length]);
    }

    const stored = storedTheme();
    root.dataset.theme = THEMES.includes(stored) ? stored : "auto";

    document.addEventListener("DOMContentLoaded", () => {
        for (const button of document.querySelectorAll("[data-theme-toggle]")) {
            button.hidden = false;
            showTheme(button);
            button.addEventListener("click", () => { nextTheme(); showTheme(button); });
        }
        for (const menu of document.querySelectorAll("details[data-menu]")) {
            document.addEventListener("click", (event) => {
                if (!menu.contains(event.target)) menu.open = false;
            });
            menu.addEventListener("keydown", (event) => {
                if (event.key !== "Escape" || !menu.open) return;
                menu.open = false;
                menu.querySelector("summary").focus();
            });
        }
        const current = document.querySelector(".menu [aria-current]");
        if (current) current.closest(".menu").scrollLeft = current.offsetLeft - 24;
    });
})();
