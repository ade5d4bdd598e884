"""The toolkit that pages of any app share: paging, badges, polling, export."""
