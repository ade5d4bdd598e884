// Keys of the operator's pages, all of which have a link or a button too. They work where nobody
// types, and can be switched off: the dialog that "?" opens says so, and what there is.
"use strict";
(() => {
    const find = (selector) => document.querySelector(selector);
    const dialog = find("[data-keys]");
    if (!dialog) return;
    const STORED = "leasing.keys";
    const toggle = dialog.querySelector("[data-keys-toggle]");

    function areOn() {
        try {
            return localStorage.getItem(STORED) !== "off";
        } catch {
            return true;
        }
    }
    function store(on) {
        try {
            localStorage.setItem(STORED, on ? "on" : "off");
        } catch {
            // Until the next page, then.
        }
    }

    const follow = (selector) => find(selector)?.click();
    const KEYS = {
        "/": () => find("main input[type=search], main [role=search] input[type=text]")?.focus(),
        "?": () => dialog.showModal(),
        n: () => follow("main a[rel=next]"),
        p: () => follow("main a[rel=prev]"),
        l: () => follow("[data-live-toggle]:not([hidden])"),
        t: () => follow("[data-theme-toggle]:not([hidden])"),
    };
    function pageOfMenu(key) {
        if (!/^[1-9]$/.test(key)) return null;
        const link = document.querySelectorAll(".menu a")[key - 1];
        return link && (() => link.click());
    }

    for (const opener of document.querySelectorAll("[data-keys-open]")) {
        opener.hidden = false;
        opener.addEventListener("click", () => dialog.showModal());
    }
    dialog.querySelector("[data-keys-close]").addEventListener("click", () => dialog.close());
    let on = toggle.checked = areOn();
    toggle.addEventListener("change", () => store(on = toggle.checked));
    document.addEventListener("keydown", (event) => {
        const { key, target } = event;
        const isTyping = target.isContentEditable
            || /^(TEXTAREA|SELECT)$/.test(target.nodeName)
            || (target.nodeName === "INPUT" && !/^(checkbox|radio|button|submit)$/.test(target.type));
        if (!on || isTyping || dialog.open || event.ctrlKey || event.metaKey || event.altKey) return;
        const act = KEYS[key] ?? pageOfMenu(key);
        if (!act) return;
        event.preventDefault();
        act();
    });
})();
