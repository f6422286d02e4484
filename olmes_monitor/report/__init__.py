"""What is shown: charts, the page, the terminal. matplotlib and rich load on use."""
